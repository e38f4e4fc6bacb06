//! The workspace's own files, for tests that look at them.

use std::path::{Path, PathBuf};

/// The workspace root.
pub fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package
        .parent()
        .expect("tests/ is inside the workspace")
        .to_owned()
}

/// Every Rust file below a folder of the workspace, as (path from the root, text), in path order. Empty when
/// the folder does not exist.
pub fn rust_files(folder: &str) -> Vec<(String, String)> {
    let mut files = Vec::new();
    collect(&root().join(folder), &mut files);
    files.sort();
    files
        .into_iter()
        .map(|path| {
            let text = std::fs::read_to_string(&path).expect("a readable file");
            let name = path.strip_prefix(root()).expect("inside the workspace");
            (name.to_string_lossy().into_owned(), text)
        })
        .collect()
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    for entry in entries {
        let path = entry.expect("a readable folder").path();
        if path.is_dir() {
            if path.file_name().is_none_or(|name| name != "target") {
                collect(&path, files);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}
