//! Decisions may be written as YAML (spec/rebuild.md 2.10). This reads YAML into the JSON values that rules look at.

use saphyr::{LoadableYamlNode, Scalar, Yaml};
use serde_json::{Map, Number, Value};

/// Decisions are short; a longer text is no decisions file, and aliases could make a short one huge.
const MOST: usize = 64 * 1024;
/// Deepest nesting that a decisions file can need.
const DEEPEST: usize = 16;

/// Reads one YAML document. Anchors, tags and several documents are refused: a decision is plain.
pub(crate) fn parse(text: &str) -> Result<Value, String> {
    if text.len() > MOST {
        return Err(format!("longer than {MOST} bytes"));
    }
    // An alias needs an anchor, and an anchor could multiply a small text.
    let anchored = text.split_whitespace().any(|word| word.starts_with('&'));
    if anchored {
        return Err("anchors are not read; write the value out".into());
    }
    let documents = Yaml::load_from_str(text).map_err(|e| e.to_string())?;
    match documents.as_slice() {
        [one] => convert(one, 0),
        _ => Err("must hold exactly one document".into()),
    }
}

fn convert(node: &Yaml<'_>, depth: usize) -> Result<Value, String> {
    if depth > DEEPEST {
        return Err("nested too deep".into());
    }
    Ok(match node {
        Yaml::Value(Scalar::Null) => Value::Null,
        Yaml::Value(Scalar::Boolean(b)) => Value::Bool(*b),
        Yaml::Value(Scalar::Integer(i)) => Value::Number((*i).into()),
        Yaml::Value(Scalar::FloatingPoint(f)) => Number::from_f64(f.into_inner())
            .map(Value::Number)
            .unwrap_or(Value::Null),
        Yaml::Value(Scalar::String(text)) => Value::String(text.to_string()),
        Yaml::Sequence(items) => Value::Array(
            items
                .iter()
                .map(|item| convert(item, depth + 1))
                .collect::<Result<_, _>>()?,
        ),
        Yaml::Mapping(map) => {
            let mut out = Map::new();
            for (key, value) in map {
                let Yaml::Value(Scalar::String(key)) = key else {
                    return Err("a key must be text".into());
                };
                out.insert(key.to_string(), convert(value, depth + 1)?);
            }
            Value::Object(out)
        }
        _ => return Err("holds something that is not plain text, number, list or map".into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn decisions_in_yaml() {
        let text = "validation_record: import\nprovenance: 'asked all teams'\nbackground_work: {mode: switch, env: W, off: 'false', on: 'true'}\nsafe_path:\n  path: /healthz\n  status: 200\n";
        let want = json!({"validation_record":"import","provenance":"asked all teams",
            "background_work":{"mode":"switch","env":"W","off":"false","on":"true"},
            "safe_path":{"path":"/healthz","status":200}});
        assert_eq!(parse(text), Ok(want));
    }

    #[test]
    fn anything_clever_is_refused() {
        assert!(parse("a: &x [1]\nb: *x\n").is_err());
        assert!(parse("a: 1\n---\nb: 2\n").is_err());
        assert!(parse("a: [unclosed").is_err());
    }
}
