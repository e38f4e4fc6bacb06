//! Releases: how versions compare, and the release list of contract 4.2.

use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;

/// A release number. Compares as semver; a leading `v` is tolerated (spec/updates.md 1.8).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Release(semver::Version);

impl Release {
    /// Reads a release number.
    pub fn parse(text: &str) -> Option<Self> {
        let t = text.trim();
        let t = t.strip_prefix(['v', 'V']).unwrap_or(t);
        if t.len() > 64 {
            return None;
        }
        semver::Version::parse(t).ok().map(Self)
    }

    /// Has it a pre-release part, such as `-rc.1`?
    pub fn is_pre(&self) -> bool {
        !self.0.pre.is_empty()
    }
}

impl std::fmt::Display for Release {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A release as rows and keys name it: no leading `v`. A text that is no version stays as it is.
pub fn canonical(release: &str) -> String {
    Release::parse(release).map_or_else(|| release.to_owned(), |r| r.to_string())
}

/// Do two texts name the same release? Texts that are no semver compare without a leading `v`.
pub fn same(a: &str, b: &str) -> bool {
    compare(a, b) == Some(Ordering::Equal)
        || a.trim().trim_start_matches(['v', 'V']) == b.trim().trim_start_matches(['v', 'V'])
}

/// Which of two texts is the older release; None when one is no semver. Build metadata does not count.
pub fn compare(a: &str, b: &str) -> Option<Ordering> {
    let (a, b) = (Release::parse(a)?, Release::parse(b)?);
    Some(a.0.cmp_precedence(&b.0))
}

/// One entry of the release list.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Listed {
    /// Release number as listed.
    pub release: String,
    /// https address of its template.
    pub template_url: String,
    /// SHA-256 of the template, hex.
    pub template_sha256: String,
    /// When it came out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released_at: Option<Timestamp>,
    /// The oldest release one may update from (a required stop).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requires: Option<String>,
    /// Models the release knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<String>>,
}

/// The release list.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReleaseList {
    /// Shape version; 1.
    pub schema: u64,
    /// In any order.
    pub releases: Vec<Listed>,
}

/// Why a release may not be begun from the current one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// It is the one that is installed.
    Installed,
    /// It is older than the installed one.
    Older,
    /// A required stop lies between: install this one first.
    TooFar {
        /// The release to install first.
        stop: String,
    },
}

impl ReleaseList {
    /// Reads the list. Entries that can not be used make it unreadable as a whole: half a list could hide a
    /// required stop.
    ///
    /// # Errors
    /// One plain sentence that says what is wrong and where.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let list: Self =
            serde_json::from_slice(bytes).map_err(|e| format!("the release list is not valid: {e}"))?;
        if list.schema != 1 {
            return Err(format!(
                "the release list has schema {}, this build reads 1",
                list.schema
            ));
        }
        for r in &list.releases {
            if Release::parse(&r.release).is_none() {
                return Err(format!(
                    "the release list names {:?}, which is no version",
                    r.release
                ));
            }
            if let Some(req) = &r.requires
                && Release::parse(req).is_none()
            {
                return Err(format!(
                    "release {} requires {req:?}, which is no version",
                    r.release
                ));
            }
            // http only to this machine: that is where the local stack's S3 is.
            let local = ["http://127.0.0.1:", "http://localhost:"]
                .iter()
                .any(|p| r.template_url.starts_with(p));
            if !r.template_url.starts_with("https://") && !local {
                return Err(format!("release {} has no https template_url", r.release));
            }
            let digest = &r.template_sha256;
            if digest.len() != 64 || !digest.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(format!("release {} has no SHA-256 in template_sha256", r.release));
            }
        }
        Ok(list)
    }

    /// The entry for a release.
    pub fn find(&self, release: &str) -> Option<&Listed> {
        self.releases
            .iter()
            .find(|r| compare(&r.release, release) == Some(Ordering::Equal))
    }

    /// The newest release, pre-releases aside.
    pub fn latest(&self) -> Option<&Listed> {
        self.releases
            .iter()
            .filter_map(|r| Release::parse(&r.release).filter(|v| !v.is_pre()).map(|v| (v, r)))
            .max_by(|a, b| a.0.0.cmp_precedence(&b.0.0))
            .map(|(_, r)| r)
    }

    /// What stands between the installed release and `target`, if anything.
    pub fn obstacle(&self, current: &str, target: &Listed) -> Option<Obstacle> {
        match compare(&target.release, current) {
            Some(Ordering::Equal) => return Some(Obstacle::Installed),
            Some(Ordering::Less) => return Some(Obstacle::Older),
            Some(Ordering::Greater) | None => {}
        }
        let requires = target.requires.as_ref()?;
        if compare(current, requires) != Some(Ordering::Less) {
            return None;
        }
        Some(Obstacle::TooFar {
            stop: self.next_stop(current, requires),
        })
    }

    /// The release to install first: walk the required stops back until one can be installed from here.
    fn next_stop(&self, current: &str, requires: &str) -> String {
        let mut stop = requires.to_owned();
        for _ in 0..self.releases.len() {
            let next = self.find(&stop).and_then(|r| r.requires.clone());
            match next {
                Some(r)
                    if compare(current, &r) == Some(Ordering::Less)
                        && compare(&r, &stop) == Some(Ordering::Less) =>
                {
                    stop = r;
                }
                _ => break,
            }
        }
        stop
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(&str, Option<&str>)]) -> ReleaseList {
        ReleaseList {
            schema: 1,
            releases: entries
                .iter()
                .map(|(r, q)| Listed {
                    release: (*r).into(),
                    template_url: "https://b.example/t.yaml".into(),
                    template_sha256: "0".repeat(64),
                    released_at: None,
                    requires: q.map(Into::into),
                    models: None,
                })
                .collect(),
        }
    }

    #[test]
    fn versions_compare_as_semver_with_or_without_v() {
        assert_eq!(compare("v2.10.0", "2.9.9"), Some(Ordering::Greater));
        assert!(same("v2.4.0", "2.4.0") && same("2.4.0+a", "2.4.0+b") && !same("2.4.0", "2.4.1"));
        assert_eq!(compare("2.4.0-rc.1", "2.4.0"), Some(Ordering::Less));
        assert_eq!(compare("latest", "2.4.0"), None);
    }

    #[test]
    fn the_latest_is_the_newest_that_is_no_pre_release() {
        let l = list(&[
            ("2.4.0", None),
            ("2.10.0", None),
            ("3.0.0-rc.1", None),
            ("2.9.0", None),
        ]);
        assert_eq!(l.latest().unwrap().release, "2.10.0");
    }

    #[test]
    fn a_required_stop_names_the_first_one_reachable() {
        let l = list(&[
            ("2.4.0", Some("2.3.0")),
            ("3.0.0", Some("2.4.0")),
            ("4.0.0", Some("3.0.0")),
        ]);
        let to = |t: &str, from: &str| l.obstacle(from, l.find(t).unwrap());
        assert_eq!(to("4.0.0", "3.0.0"), None);
        assert_eq!(
            to("4.0.0", "2.4.0"),
            Some(Obstacle::TooFar { stop: "3.0.0".into() })
        );
        assert_eq!(
            to("4.0.0", "2.3.0"),
            Some(Obstacle::TooFar { stop: "2.4.0".into() })
        );
        assert_eq!(to("2.4.0", "2.4.0"), Some(Obstacle::Installed));
        assert_eq!(to("2.4.0", "3.0.0"), Some(Obstacle::Older));
    }

    #[test]
    fn a_stop_that_requires_itself_does_not_loop() {
        let l = list(&[("3.0.0", Some("3.0.0")), ("4.0.0", Some("3.0.0"))]);
        assert_eq!(
            l.obstacle("2.0.0", l.find("4.0.0").unwrap()),
            Some(Obstacle::TooFar { stop: "3.0.0".into() })
        );
    }

    #[test]
    fn an_unusable_list_says_where() {
        for (bytes, want) in [
            (&b"nope"[..], "not valid"),
            (br#"{"schema":2,"releases":[]}"#, "schema 2"),
            (br#"{"schema":1,"releases":[{"release":"new","template_url":"https://x","template_sha256":"0"}]}"#, "no version"),
            (br#"{"schema":1,"releases":[{"release":"1.0.0","template_url":"http://x","template_sha256":"0"}]}"#, "https"),
        ] {
            assert!(ReleaseList::parse(bytes).unwrap_err().contains(want), "{want}");
        }
    }
}
