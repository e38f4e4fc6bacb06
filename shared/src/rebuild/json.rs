//! JSON as the gates compare it: dotted paths, leaf differences, and equality by the words of a manifest.
//!
//! Sources: spec/rebuild.md 2.3 (A-5..A-11), 2.11 rows 24 and 25, 3.3 (paths).

use serde_json::{Map, Value};

use super::names::dns_eq;

/// A JSON null to borrow where a value is absent.
pub(crate) static NULL: Value = Value::Null;

/// The value at a dotted path (`a.0.b`), or None when a step does not exist.
pub(crate) fn at<'v>(root: &'v Value, path: &str) -> Option<&'v Value> {
    let mut here = root;
    for step in path.split('.') {
        here = match here {
            Value::Object(map) => map.get(step)?,
            Value::Array(items) => items.get(step.parse::<usize>().ok()?)?,
            _ => return None,
        };
    }
    Some(here)
}

/// The string at a path; None when absent or of another type.
pub(crate) fn str_at<'v>(root: &'v Value, path: &str) -> Option<&'v str> {
    at(root, path).and_then(Value::as_str)
}

/// Whether a mask (`after_unknown`, `after_sensitive`) covers a path: `true` at the path, at an ancestor of it,
/// or anywhere beneath it.
pub(crate) fn masked(mask: &Value, path: &str) -> bool {
    let mut here = mask;
    for step in path.split('.') {
        if *here == Value::Bool(true) {
            return true;
        }
        let next = match here {
            Value::Object(map) => map.get(step),
            Value::Array(items) => step.parse::<usize>().ok().and_then(|i| items.get(i)),
            _ => None,
        };
        match next {
            Some(value) => here = value,
            None => return false,
        }
    }
    any_true(here)
}

/// Whether `true` occurs anywhere in a mask.
pub(crate) fn any_true(mask: &Value) -> bool {
    match mask {
        Value::Bool(b) => *b,
        Value::Array(items) => items.iter().any(any_true),
        Value::Object(map) => map.values().any(any_true),
        _ => false,
    }
}

/// Attribute names that hold sets although JSON shows arrays.
pub(crate) fn is_set_path(path: &str) -> bool {
    matches!(
        last(path),
        "records" | "subject_alternative_names" | "security_groups" | "subnets" | "validation_record_fqdns"
    )
}

/// The last step of a dotted path.
pub(crate) fn last(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

/// Leaf paths at which two objects differ, or that the mask says are not known yet. Sets ignore order,
/// documents in strings are compared parsed, and an absent leaf equals null.
pub(crate) fn changed_paths(before: &Value, after: &Value, unknown: &Value) -> Vec<String> {
    let mut out = Vec::new();
    diff(before, after, "", &mut out);
    unknown_leaves(unknown, "", &mut out);
    out.sort();
    out.dedup();
    out
}

fn join(path: &str, step: &str) -> String {
    if path.is_empty() {
        step.to_owned()
    } else {
        format!("{path}.{step}")
    }
}

fn diff(before: &Value, after: &Value, path: &str, out: &mut Vec<String>) {
    match (before, after) {
        (Value::Object(b), Value::Object(a)) => {
            for (key, value) in b {
                diff(value, a.get(key).unwrap_or(&NULL), &join(path, key), out);
            }
            for (key, value) in a.iter().filter(|(key, _)| !b.contains_key(*key)) {
                diff(&NULL, value, &join(path, key), out);
            }
        }
        (Value::Array(b), Value::Array(a)) => {
            if is_set_path(path) && same_set(b, a, &equal) {
                return;
            }
            for i in 0..b.len().max(a.len()) {
                diff(
                    b.get(i).unwrap_or(&NULL),
                    a.get(i).unwrap_or(&NULL),
                    &join(path, &i.to_string()),
                    out,
                );
            }
        }
        _ if leaf_equal(before, after, path) => {}
        // One side is a container: name its leaves, so that a rule sees what is inside and not a whole block.
        (Value::Null, Value::Object(map)) | (Value::Object(map), Value::Null) if !map.is_empty() => {
            for key in map.keys() {
                let (b, a) = (member(before, key), member(after, key));
                diff(b, a, &join(path, key), out);
            }
        }
        (Value::Null, Value::Array(items)) | (Value::Array(items), Value::Null) if !items.is_empty() => {
            for i in 0..items.len() {
                let step = i.to_string();
                let (b, a) = (
                    at(before, &step).unwrap_or(&NULL),
                    at(after, &step).unwrap_or(&NULL),
                );
                diff(b, a, &join(path, &step), out);
            }
            if items.iter().all(Value::is_null) {
                out.push(path.to_owned());
            }
        }
        _ => out.push(path.to_owned()),
    }
}

fn member<'v>(value: &'v Value, key: &str) -> &'v Value {
    value.as_object().and_then(|map| map.get(key)).unwrap_or(&NULL)
}

fn unknown_leaves(mask: &Value, path: &str, out: &mut Vec<String>) {
    match mask {
        Value::Bool(true) => out.push(path.to_owned()),
        Value::Object(map) => {
            map.iter()
                .for_each(|(key, value)| unknown_leaves(value, &join(path, key), out));
        }
        Value::Array(items) => {
            items
                .iter()
                .enumerate()
                .for_each(|(i, value)| unknown_leaves(value, &join(path, &i.to_string()), out));
        }
        _ => {}
    }
}

fn leaf_equal(before: &Value, after: &Value, path: &str) -> bool {
    // Route 53 state writes "" where a plan writes null (spec 3.1).
    if last(path) == "set_identifier" && empty_text(before) && empty_text(after) {
        return true;
    }
    equal(before, after)
        || match (document(before), document(after)) {
            (Some(b), Some(a)) if last(path) == "container_definitions" => {
                match (containers(&b), containers(&a)) {
                    (Ok(b), Ok(a)) => equal(&b, &a),
                    _ => false,
                }
            }
            (Some(b), Some(a)) => equal(&b, &a),
            _ => false,
        }
}

fn empty_text(value: &Value) -> bool {
    value.is_null() || value.as_str() == Some("")
}

/// A JSON object or array written in a string.
pub(crate) fn document(value: &Value) -> Option<Value> {
    let text = value.as_str()?;
    let start = text.trim_start();
    if !(start.starts_with('{') || start.starts_with('[')) {
        return None;
    }
    serde_json::from_str(text).ok()
}

/// Structural equality in which the order of keys does not matter and 1 equals 1.0.
pub(crate) fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => {
            x == y || ((x.is_f64() || y.is_f64()) && x.as_f64() == y.as_f64())
        }
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(p, q)| equal(p, q)),
        (Value::Object(x), Value::Object(y)) => {
            x.len() == y.len() && x.iter().all(|(key, p)| y.get(key).is_some_and(|q| equal(p, q)))
        }
        _ => a == b,
    }
}

/// Whether two lists hold the same items, each as often, in any order.
pub(crate) fn same_set(a: &[Value], b: &[Value], eq: &dyn Fn(&Value, &Value) -> bool) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut left: Vec<&Value> = b.iter().collect();
    for item in a {
        let Some(i) = left.iter().position(|other| eq(item, other)) else {
            return false;
        };
        left.swap_remove(i);
    }
    true
}

/// Whether two values are the same DNS name, or lists of the same DNS names in any order.
pub(crate) fn dns_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::String(x), Value::String(y)) => dns_eq(x, y),
        (Value::Array(x), Value::Array(y)) => same_set(x, y, &dns_equal),
        _ => equal(a, b),
    }
}

/// A fault in container definitions that makes a comparison impossible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ContainerFault {
    /// Not a list of objects.
    Shape,
    /// The same environment or secret name twice in one container.
    Duplicate(String),
}

/// Container definitions in the form in which two of them are compared: environment and secrets as maps by name,
/// empty members and the defaults that ECS fills in dropped (A-11, 2.11 row 25).
pub(crate) fn containers(definitions: &Value) -> Result<Value, ContainerFault> {
    let list = definitions.as_array().ok_or(ContainerFault::Shape)?;
    let mut out = Vec::new();
    for container in list {
        let map = container.as_object().ok_or(ContainerFault::Shape)?;
        let mut kept = Map::new();
        for (key, value) in map {
            let value = match key.as_str() {
                "environment" => by_name(value, "value")?,
                "secrets" => by_name(value, "valueFrom")?,
                "portMappings" => ports(value),
                // Defaults that DescribeTaskDefinition shows and a plan does not.
                "cpu" if value.as_i64() == Some(0) => Value::Null,
                "essential" if value.as_bool() == Some(true) => Value::Null,
                _ => value.clone(),
            };
            kept.insert(key.clone(), value);
        }
        out.push(without_empty(&Value::Object(kept)));
    }
    Ok(Value::Array(out))
}

fn by_name(list: &Value, member: &str) -> Result<Value, ContainerFault> {
    let items = match list {
        Value::Null => return Ok(Value::Null),
        Value::Array(items) => items,
        _ => return Err(ContainerFault::Shape),
    };
    let mut map = Map::new();
    for item in items {
        let name = item
            .get("name")
            .and_then(Value::as_str)
            .ok_or(ContainerFault::Shape)?;
        let value = item.get(member).cloned().unwrap_or(Value::Null);
        if map.insert(name.to_owned(), value).is_some() {
            return Err(ContainerFault::Duplicate(name.to_owned()));
        }
    }
    Ok(Value::Object(map))
}

fn ports(list: &Value) -> Value {
    let Some(items) = list.as_array() else {
        return list.clone();
    };
    let clean = items.iter().map(|item| {
        let Some(map) = item.as_object() else {
            return item.clone();
        };
        let mut map = map.clone();
        let port = map.get("containerPort").cloned().unwrap_or(Value::Null);
        // In awsvpc mode the host port is the container port; ECS writes it, a plan need not.
        if map
            .get("hostPort")
            .is_some_and(|host| equal(host, &port) || host.as_i64() == Some(0))
        {
            map.shift_remove("hostPort");
        }
        if map.get("protocol").and_then(Value::as_str) == Some("tcp") {
            map.shift_remove("protocol");
        }
        Value::Object(map)
    });
    Value::Array(clean.collect())
}

/// The value without members that are null, "", [] or {} (2.11 row 25). An environment entry with an empty value
/// keeps its name: the maps made by [`containers`] are not emptied of it.
pub(crate) fn without_empty(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut kept = Map::new();
            for (key, item) in map {
                let item = match key.as_str() {
                    "environment" | "secrets" => item.clone(),
                    _ => without_empty(item),
                };
                if !is_empty(&item) {
                    kept.insert(key.clone(), item);
                }
            }
            Value::Object(kept)
        }
        Value::Array(items) => Value::Array(items.iter().map(without_empty).collect()),
        _ => value.clone(),
    }
}

/// Null, "", [] or {}.
pub(crate) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_change_descends_to_its_leaf() {
        let before = json!({"s":[{"e":{"A":"1","B":"2"}}],"same":[]});
        let after = json!({"s":[{"e":{"A":"1","B":"3"}}]});
        assert_eq!(
            changed_paths(&before, &after, &json!({})),
            vec!["s.0.e.B", "same"]
        );
    }

    #[test]
    fn sets_and_documents_compare_by_content() {
        let before = json!({"records":["a","b"],"p":"{\"x\":1,\"y\":2}"});
        let after = json!({"records":["b","a"],"p":"{\"y\":2, \"x\":1}"});
        assert!(changed_paths(&before, &after, &json!({})).is_empty());
    }

    #[test]
    fn unknown_covers_ancestors_and_descendants() {
        let mask = json!({"alias":[{"name":true}],"td":true});
        assert!(masked(&mask, "alias"));
        assert!(masked(&mask, "td.0.x"));
        assert!(!masked(&mask, "alias.0.zone"));
    }

    #[test]
    fn containers_refuse_a_name_given_twice() {
        let twice = json!([{"environment":[{"name":"A","value":"1"},{"name":"A","value":"1"}]}]);
        assert_eq!(containers(&twice), Err(ContainerFault::Duplicate("A".into())));
    }

    #[test]
    fn ecs_defaults_are_no_difference() {
        let plan =
            json!([{"name":"api","portMappings":[{"containerPort":80,"protocol":"tcp"}],"essential":true}]);
        let live = json!([{"name":"api","cpu":0,"mountPoints":[],"portMappings":[{"containerPort":80,"hostPort":80,"protocol":"tcp"}]}]);
        assert!(equal(&containers(&plan).unwrap(), &containers(&live).unwrap()));
    }
}
