//! The HTTP side of private links (contract 4.5): reading for support, editing for whoever owns the links.
//! The rules are in `view` and `edit`; here they are turned into answers.
//!
//! A reader without the right gets an empty list or 404 whatever is asked for, so that ids can not be probed.

use super::edit::{Config, Faults};
use super::model::{Generation, LinkId, PlaneId, Row};
use super::store::{self, Edit, LINK_PREFIX};
use super::view::View;
use crate::caller::{Caller, Scope};
use crate::error::CallError;
use crate::http::{Problem, Request, Response, cursor_encode, hex, invalid, not_found, wrong_method};
use crate::status::Flag;
use crate::store::{Attr, Item, Query, Table, Write, WriteError};
use crate::time::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Tries of an edit against others that edit the same link.
const ROUNDS: usize = 3;
/// A list is cut here: Lambda's answer may have 6 MB (Lambda quotas, "Invocation payload"), some of them
/// escapes.
const LIST_BYTES: usize = 4 * 1024 * 1024;
/// Most links in one answer.
const LIST_MAX: u32 = 10_000;

/// What an edit did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Edited {
    Created,
    Changed,
    Unchanged,
}

/// Why an edit did not happen.
#[derive(Debug)]
enum EditError {
    /// Another link of the plane leads to the service already.
    Duplicate(Option<String>),
    /// Others edited the link in every round.
    Busy,
    /// The row was written by a newer version.
    Newer,
    /// The row can not be read.
    Unreadable(String),
    /// The table did not do what was asked.
    Call(CallError),
}

/// Answers a request; never fails, never panics.
pub async fn respond<T: Table>(
    table: &T,
    request: &Request,
    auth_is_local: bool,
    now: Timestamp,
) -> Response {
    let answer = match request.caller(auth_is_local) {
        Err(refused) => refused,
        Ok(caller) => route(table, request, &caller, now).await,
    };
    answer.finish(request)
}

async fn route<T: Table>(table: &T, request: &Request, caller: &Caller, now: Timestamp) -> Response {
    let segments = request.segments();
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    match (segments.as_slice(), request.method.as_str()) {
        (["data-planes", plane, "private-links"], "GET") => list(table, request, caller, plane, now).await,
        (["data-planes", _, "private-links"], _) => wrong_method("GET"),
        (["data-planes", plane, "private-links", id], "GET") => one(table, caller, (plane, id), now).await,
        (["data-planes", plane, "private-links", id], "PUT" | "DELETE") => {
            if let Err(refused) = caller.require(Scope::Write) {
                return refused.into();
            }
            let (plane, id) = match ids(plane, id) {
                Ok(ids) => ids,
                Err(refused) => return refused,
            };
            let edit = Edit {
                plane,
                id,
                actor: caller.actor(),
                now,
            };
            if request.method == "DELETE" {
                return delete(table, &edit)
                    .await
                    .map_or_else(|e| refusal(&e), |()| Response::empty(204));
            }
            put(table, &edit, request).await
        }
        (["data-planes", _, "private-links", _], _) => wrong_method("GET, PUT, DELETE"),
        _ => not_found("route"),
    }
}

const ID_FORM: &str = "must be an id of 16 hex digits";

fn ids(plane: &str, id: &str) -> Result<(PlaneId, LinkId), Response> {
    match (PlaneId::parse(plane), LinkId::parse(id)) {
        (Some(plane), Some(id)) => Ok((plane, id)),
        (plane, id) => {
            let bad = [(plane.is_none(), "data plane"), (id.is_none(), "link")];
            let bad: Vec<(&str, &str)> = bad
                .iter()
                .filter(|(bad, _)| *bad)
                .map(|(_, name)| (*name, ID_FORM))
                .collect();
            Err(invalid(&bad))
        }
    }
}

fn may_read(caller: &Caller) -> bool {
    caller.has(Scope::Read) || caller.has(Scope::Links)
}

/// A tag over the bytes of the representation: any change of the row, and the move to `stalled`, changes it.
fn tagged(body: String) -> Response {
    let tag = hex(&Sha256::digest(body.as_bytes()));
    let mut response = Response::json(200, &Value::Null);
    response.body = body;
    response.header("etag", format!("W/\"{}\"", tag.get(..32).unwrap_or(&tag)))
}

fn with_retry(response: Response, seconds: Option<u32>) -> Response {
    match seconds {
        Some(s) => response.header("retry-after", s.to_string()),
        None => response,
    }
}

fn shown(row: &Row, now: Timestamp) -> Response {
    let view = View::of(row, now);
    with_retry(tagged(view.to_json()), view.phase.retry_after())
}

async fn one<T: Table>(table: &T, caller: &Caller, at: (&str, &str), now: Timestamp) -> Response {
    let (true, Some(plane), Some(id)) = (may_read(caller), PlaneId::parse(at.0), LinkId::parse(at.1)) else {
        return not_found("private link of that id");
    };
    match table.get(&store::link_key(plane, id)).await {
        Err(e) => unavailable(&e),
        Ok(None) => not_found("private link of that id"),
        Ok(Some(item)) => match Row::read(&item) {
            Ok(row) => shown(&row, now),
            Err(why) => refusal(&EditError::Unreadable(why)),
        },
    }
}

/// All items of a plane's links, page by page.
async fn links<T: Table>(table: &T, plane: PlaneId) -> Result<Vec<Item>, CallError> {
    let mut items = Vec::new();
    let mut after = None;
    loop {
        let query = Query {
            pk: store::partition(plane),
            sk_prefix: LINK_PREFIX.into(),
            descending: false,
            limit: None,
            after,
        };
        let page = table.query(&query).await?;
        items.extend(page.items);
        match page.next {
            None => return Ok(items),
            next => after = next,
        }
    }
}

async fn list<T: Table>(
    table: &T,
    request: &Request,
    caller: &Caller,
    plane: &str,
    now: Timestamp,
) -> Response {
    if !may_read(caller) {
        return tagged(r#"{"links":[]}"#.into());
    }
    let Some(plane) = PlaneId::parse(plane) else {
        return invalid(&[("data plane", ID_FORM)]);
    };
    let (limit, cursor) = match request.paging(LIST_MAX, LIST_MAX) {
        Ok(paging) => paging,
        Err(refused) => return refused,
    };
    let items = match links(table, plane).await {
        Ok(items) => items,
        Err(e) => return unavailable(&e),
    };
    let mut flags = Vec::new();
    let mut rows = Vec::new();
    for item in &items {
        match Row::read(item) {
            Ok(row) => rows.push(row),
            Err(why) => {
                let sk = item.get("sk").and_then(Attr::as_str).unwrap_or("?").to_owned();
                flags.push(Flag::new(
                    "row_unreadable",
                    format!("{sk} can not be read: {why}."),
                ));
            }
        }
    }
    rows.sort_by_key(place);
    let after = match cursor.as_deref().map(place_of) {
        None => None,
        Some(Some(place)) => Some(place),
        Some(None) => {
            return invalid(&[("cursor", "is not one that this API gave; start again without it")]);
        }
    };
    listed(&rows, after, limit, &flags, now)
}

/// By creation, then id (contract 4.5).
type Place = (Option<Timestamp>, LinkId);

fn place(row: &Row) -> Place {
    (row.created_at, row.id)
}

fn cursor_of(row: &Row) -> String {
    format!(
        "{}|{}",
        row.created_at.map(|t| t.to_string()).unwrap_or_default(),
        row.id
    )
}

/// The inverse of [`cursor_of`].
fn place_of(cursor: &str) -> Option<Place> {
    let (at, id) = cursor.split_once('|')?;
    let at = if at.is_empty() {
        None
    } else {
        Some(at.parse().ok()?)
    };
    Some((at, LinkId::parse(id)?))
}

fn listed(rows: &[Row], after: Option<Place>, limit: u32, flags: &[Flag], now: Timestamp) -> Response {
    let mut body = String::from(r#"{"links":["#);
    let mut last: Option<&Row> = None;
    let mut wait: Option<u32> = None;
    let mut more = false;
    for (count, row) in rows
        .iter()
        .filter(|r| after.is_none_or(|a| place(r) > a))
        .enumerate()
    {
        let view = View::of(row, now);
        let text = view.to_json();
        if count >= limit as usize || (count > 0 && body.len() + text.len() > LIST_BYTES) {
            more = true;
            break;
        }
        if count > 0 {
            body.push(',');
        }
        body.push_str(&text);
        wait = [wait, view.phase.retry_after()].into_iter().flatten().min();
        last = Some(row);
    }
    body.push(']');
    if let (true, Some(row)) = (more, last) {
        body.push_str(&format!(r#","next_cursor":"{}""#, cursor_encode(&cursor_of(row))));
    }
    if !flags.is_empty() {
        body.push_str(&format!(r#","flags":{}"#, json!(flags)));
    }
    body.push('}');
    with_retry(tagged(body), wait)
}

async fn put<T: Table>(table: &T, edit: &Edit<'_>, request: &Request) -> Response {
    if let Err(refused) = request.check_size() {
        return refused;
    }
    let config = match Config::read(&request.body) {
        Ok(config) => config,
        Err(faults) => return bad_config(&faults),
    };
    match save(table, edit, &config).await {
        Err(e) => refusal(&e),
        Ok((edited, row)) => {
            let mut answer = shown(&row, edit.now);
            if edited == Edited::Created {
                answer.status = 201;
                answer = answer.header(
                    "location",
                    format!("/data-planes/{}/private-links/{}", edit.plane, edit.id),
                );
            }
            answer
        }
    }
}

fn bad_config(faults: &Faults) -> Response {
    let errors: Vec<Value> = faults
        .fields
        .iter()
        .map(|(f, t)| json!({"field": f, "text": t}))
        .collect();
    let p = Problem::new(
        400,
        "invalid_request",
        "The configuration is not valid",
        format!("{} Nothing was changed.", faults.summary),
    )
    .with("errors", json!(errors));
    if faults.missing.is_empty() {
        return p.into();
    }
    let missing: serde_json::Map<String, Value> = faults
        .missing
        .iter()
        .map(|(p, m)| (p.as_str().to_owned(), json!(m)))
        .collect();
    p.with("missing", Value::Object(missing)).into()
}

fn unavailable(e: &CallError) -> Response {
    Problem::aws_unavailable(e, "The table of the links did not answer as it should").into()
}

fn refusal(e: &EditError) -> Response {
    match e {
        EditError::Call(e) => unavailable(e),
        EditError::Duplicate(link) => Problem::new(
            409,
            "link_duplicate",
            "The plane has a link to this service already",
            "Two links of one plane to one service would give colliding resources and stop every converge. Change or \
             delete the other link. Nothing was changed.",
        )
        .with("link", json!(link))
        .into(),
        EditError::Busy => Problem::new(
            409,
            "link_busy",
            "Others are editing this link",
            "The link was changed by others in each of three tries. Read it again and repeat the change if it is still \
             wanted. Nothing was changed by this call.",
        )
        .retry_after("1")
        .into(),
        EditError::Newer => Problem::new(
            409,
            "row_newer",
            "The link was written by a newer version",
            "A newer version of Headgate wrote this link, and this one does not rewrite what it may not understand. Try \
             again when the update of this function is done. Nothing was changed.",
        )
        .retry_after("60")
        .into(),
        EditError::Unreadable(why) => Problem::new(
            500,
            "row_unreadable",
            "The stored link can not be read",
            format!("The stored link can not be read: {why}. An admin has to look at the row. Nothing was changed."),
        )
        .into(),
    }
}

/// What an edit starts from.
struct Before {
    row: Option<Row>,
    /// The generation a deleted link of the same id had.
    gone: Option<Generation>,
    /// The row's service is claimed for it, so that the claim is released with it. Another link's claim is
    /// left alone.
    claimed: bool,
}

async fn read<T: Table>(table: &T, edit: &Edit<'_>) -> Result<Before, EditError> {
    let get = async |key| table.get(&key).await.map_err(EditError::Call);
    let item = get(store::link_key(edit.plane, edit.id)).await?;
    let row = item
        .map(|i| Row::read(&i))
        .transpose()
        .map_err(EditError::Unreadable)?;
    if row.as_ref().is_some_and(Row::is_newer) {
        return Err(EditError::Newer);
    }
    let gone = get(store::gone_key(edit.plane, edit.id)).await?;
    let claim = match &row {
        None => None,
        Some(row) => {
            get(store::identity_key(
                edit.plane,
                row.provider,
                &row.service_identity,
            ))
            .await?
        }
    };
    let text = |item: Option<Item>, name: &str| item.and_then(|mut i| i.remove(name));
    Ok(Before {
        row,
        gone: text(gone, "generation").and_then(|g| g.as_u64()),
        claimed: text(claim, "link") == Some(Attr::s(edit.id.to_string())),
    })
}

/// Saves a configuration: intent and its uniqueness in one transaction, on what was read.
async fn save<T: Table>(table: &T, edit: &Edit<'_>, config: &Config) -> Result<(Edited, Row), EditError> {
    for _ in 0..ROUNDS {
        let before = read(table, edit).await?;
        let (edited, writes) = match &before.row {
            Some(row) if config.same_as(&row.config) => return Ok((Edited::Unchanged, row.clone())),
            Some(row) => (Edited::Changed, edit.change(row, config, before.claimed)),
            None => (Edited::Created, edit.create(config, before.gone)),
        };
        if !commit(table, &writes).await? {
            continue;
        }
        // Read back, so that the answer is what is stored and not what we meant to store.
        let after = read(table, edit).await?;
        return after.row.map(|row| (edited, row)).ok_or(EditError::Busy);
    }
    Err(EditError::Busy)
}

async fn delete<T: Table>(table: &T, edit: &Edit<'_>) -> Result<(), EditError> {
    for _ in 0..ROUNDS {
        let before = read(table, edit).await?;
        let Some(row) = before.row else { return Ok(()) };
        if commit(table, &edit.delete(&row, before.gone, before.claimed)).await? {
            return Ok(());
        }
    }
    Err(EditError::Busy)
}

/// `false` when what was read is no longer so, and it is worth reading again.
async fn commit<T: Table>(table: &T, writes: &[Write]) -> Result<bool, EditError> {
    match table.write(writes, "").await {
        Ok(()) => Ok(true),
        Err(WriteError::Call(e)) => Err(EditError::Call(e)),
        Err(WriteError::Conflict(failed)) => match failed.as_slice() {
            // Only the claim is in the way: another link has the service.
            [claim] if writes.get(claim.index).is_some_and(store::is_claim) => {
                let other = claim
                    .old
                    .as_ref()
                    .and_then(|i| i.get("link"))
                    .and_then(Attr::as_str);
                Err(EditError::Duplicate(other.map(str::to_owned)))
            }
            _ => Ok(false),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::fake::{FakeWorld, Trouble, block_on};
    use crate::store::Key;

    const PLANE: &str = "0e8f3a0000000055";
    const A: &str = r#"{"region":"us-east-1","az_ids":["use1-az1"],"service_name":"svc-a"}"#;
    const A2: &str = r#"{"region":"us-east-1","az_ids":["use1-az2"],"service_name":"svc-a"}"#;
    const B: &str = r#"{"service_name":"svc-b","location":"westeurope","n":9007199254740993}"#;

    fn request(method: &str, path: &str, scope: Option<&str>, body: &str) -> Request {
        let authorizer = scope.map_or(
            Value::Null,
            |s| json!({"jwt":{"claims":{"email":"ana@example.org","scope":s}}}),
        );
        Request::parse(&json!({
            "rawPath": format!("/data-planes{path}"), "body": body, "headers": {},
            "requestContext": {"stage":"$default","requestId":"r","http":{"method":method},"authorizer":authorizer}
        }))
        .unwrap()
    }

    fn at(minute: i64) -> Timestamp {
        crate::time::plus_seconds("2026-09-10T12:00:00Z".parse().unwrap(), 60 * minute)
    }

    fn call(world: &FakeWorld, method: &str, path: &str, body: &str) -> (u16, Value) {
        let r = request(method, path, Some("headgate/read headgate/write"), body);
        let answer = block_on(respond(world, &r, false, at(0)));
        (
            answer.status,
            serde_json::from_str(&answer.body).unwrap_or(Value::Null),
        )
    }

    fn path(n: u8) -> String {
        format!("/{PLANE}/private-links/{n:016x}")
    }

    fn item(world: &FakeWorld, sk: &str) -> Option<Item> {
        world.item(&Key::new(format!("PLANE#{PLANE}"), sk))
    }

    fn observe(world: &FakeWorld, n: u8, stage: &str, generation: u64) -> String {
        let id = format!("{n:016x}");
        let event = format!(
            r#"{{"schema":1,"data_plane_id":"{PLANE}","converge_id":"c","converge_seq":7,"stage":"{stage}","result":"succeeded","completed_at":"2026-09-10T12:00:40Z","pinned_links":[{{"id":"{id}","generation":{generation}}}],"outputs":{{"link_results":[{{"id":"{id}","status":"provisioned","details":{{"dns_entries":[{{"dns_name":"vpce-0aaaaaaaaaaaaaaaa-x.svc.us-east-1.vpce.amazonaws.com"}}]}}}}]}}}}"#
        );
        let w = crate::links::run::World {
            table: world,
            outputs: world,
            buckets: &[],
        };
        let p = block_on(crate::links::run::process(&w, &event, || true)).unwrap();
        p.outcomes.values().map(ToString::to_string).collect()
    }

    #[test]
    fn a_link_is_made_changed_and_left_alone() {
        let w = FakeWorld::default();
        let (status, made) = call(&w, "PUT", &path(1), A);
        assert_eq!(
            (status, &made["generation"], &made["phase"]),
            (201, &json!(1), &json!("waiting"))
        );
        assert_eq!(
            item(&w, "IDENTITY#aws#svc-a").unwrap()["link"],
            Attr::s("0000000000000001")
        );
        assert_eq!(
            item(&w, "LINK#0000000000000001").unwrap()["updated_by"],
            Attr::s("ana@example.org")
        );
        assert_eq!(observe(&w, 1, "Ansible", 1), "Settled");
        let writes = w.writes.get();
        let spaced = A.replace(',', " , ");
        let (status, same) = call(&w, "PUT", &path(1), &spaced);
        assert_eq!(
            (status, &same["status"], w.writes.get()),
            (200, &json!("provisioned"), writes)
        );
        let (status, changed) = call(&w, "PUT", &path(1), A2);
        assert_eq!(
            (status, &changed["generation"], &changed["status"]),
            (200, &json!(2), &json!("pending"))
        );
        let row = item(&w, "LINK#0000000000000001").unwrap();
        for gone in ["details", "details_at", "details_stage", "error", "observed_at"] {
            assert!(!row.contains_key(gone), "{gone}");
        }
        assert!(
            row.contains_key("w_order"),
            "the writer's token is not the editor's business"
        );
        assert_eq!(observe(&w, 1, "Converge", 1), "StaleGeneration");
    }

    #[test]
    fn the_stored_and_shown_configuration_is_what_was_sent() {
        let w = FakeWorld::default();
        let r = request("PUT", &path(1), Some("headgate/write"), B);
        let answer = block_on(respond(&w, &r, false, at(0)));
        assert!(
            answer.body.contains(&format!(r#""config":{B}"#)),
            "{}",
            answer.body
        );
        assert_eq!(answer.headers["location"], format!("/data-planes{}", path(1)));
        assert_eq!(item(&w, "LINK#0000000000000001").unwrap()["config"], Attr::s(B));
    }

    #[test]
    fn one_service_per_plane_and_its_claim_moves_with_the_link() {
        let w = FakeWorld::default();
        assert_eq!(call(&w, "PUT", &path(1), A).0, 201);
        let (status, problem) = call(&w, "PUT", &path(2), A2);
        assert_eq!(
            (status, &problem["code"], &problem["link"]),
            (409, &json!("link_duplicate"), &json!("0000000000000001"))
        );
        assert_eq!(item(&w, "LINK#0000000000000002"), None);
        assert_eq!(call(&w, "PUT", &path(2), B).0, 201);
        assert_eq!(call(&w, "PUT", &path(2), A).1["code"], "link_duplicate");
        assert_eq!(call(&w, "PUT", &path(1), &B.replace("svc-b", "svc-c")).0, 200);
        assert_eq!(item(&w, "IDENTITY#aws#svc-a"), None);
        assert_eq!(call(&w, "PUT", &path(2), A).0, 200);
        assert_eq!(
            item(&w, "IDENTITY#aws#svc-a").unwrap()["link"],
            Attr::s("0000000000000002")
        );
    }

    #[test]
    fn a_deleted_link_is_gone_and_a_new_one_of_its_id_is_out_of_reach_of_old_events() {
        let w = FakeWorld::default();
        assert_eq!(call(&w, "PUT", &path(1), A).0, 201);
        assert_eq!(call(&w, "PUT", &path(1), A2).0, 200);
        assert_eq!(call(&w, "DELETE", &path(1), "").0, 204);
        assert_eq!(call(&w, "DELETE", &path(1), "").0, 204);
        assert_eq!(
            (item(&w, "LINK#0000000000000001"), item(&w, "IDENTITY#aws#svc-a")),
            (None, None)
        );
        assert_eq!(call(&w, "GET", &path(1), "").0, 404);
        assert_eq!(observe(&w, 1, "PulumiUp1", 2), "LinkGone");
        let (status, again) = call(&w, "PUT", &path(1), A);
        assert_eq!((status, &again["generation"]), (201, &json!(3)));
        assert_eq!(observe(&w, 1, "PulumiUp1", 2), "StaleGeneration");
        assert_eq!(observe(&w, 1, "PulumiUp1", 3), "Published");
    }

    #[test]
    fn a_claim_of_another_link_never_blocks_an_edit_and_is_never_taken() {
        let w = FakeWorld::default();
        assert_eq!(call(&w, "PUT", &path(1), A).0, 201);
        let mut claim = item(&w, "IDENTITY#aws#svc-a").unwrap();
        claim.insert("link".into(), Attr::s("0000000000000009"));
        w.table.borrow_mut().seed(claim.clone());
        assert_eq!(call(&w, "PUT", &path(1), B).0, 200);
        assert_eq!(call(&w, "DELETE", &path(1), "").0, 204);
        assert_eq!(item(&w, "IDENTITY#aws#svc-a"), Some(claim));
    }

    #[test]
    fn an_edit_that_others_overtake_is_decided_again_and_given_up_after_three() {
        let w = FakeWorld::default();
        assert_eq!(call(&w, "PUT", &path(1), A).0, 201);
        let bump = |n: u64| {
            let set = vec![("generation".to_owned(), Attr::n(n))];
            let op = crate::store::Op::Update {
                set,
                remove: vec![],
                add: vec![],
            };
            let key = Key::new(format!("PLANE#{PLANE}"), "LINK#0000000000000001");
            vec![Write {
                key,
                op,
                when: crate::store::Cond::Always,
            }]
        };
        w.meanwhile.borrow_mut().extend([bump(5), bump(6), bump(7)]);
        let (status, problem) = call(&w, "PUT", &path(1), A2);
        assert_eq!((status, &problem["code"]), (409, &json!("link_busy")));
        w.meanwhile.borrow_mut().extend([bump(8), vec![]]);
        let (status, changed) = call(&w, "PUT", &path(1), A2);
        assert_eq!((status, &changed["generation"]), (200, &json!(9)));
    }

    #[test]
    fn a_lost_answer_is_503_and_the_repeated_call_finds_it_done() {
        let w = FakeWorld::default();
        w.trouble.borrow_mut().push_back(Trouble::AnswerLost);
        let (status, problem) = call(&w, "PUT", &path(1), A);
        assert_eq!((status, &problem["code"]), (503, &json!("aws_unavailable")));
        let (status, link) = call(&w, "PUT", &path(1), A);
        assert_eq!((status, &link["generation"]), (200, &json!(1)));
    }

    #[test]
    fn a_row_of_a_newer_version_is_shown_and_never_rewritten() {
        let w = FakeWorld::default();
        assert_eq!(call(&w, "PUT", &path(1), A).0, 201);
        let mut row = item(&w, "LINK#0000000000000001").unwrap();
        row.insert("schema".into(), Attr::n(2));
        w.table.borrow_mut().seed(row.clone());
        assert_eq!(call(&w, "PUT", &path(1), A2).1["code"], "row_newer");
        assert_eq!(call(&w, "DELETE", &path(1), "").1["code"], "row_newer");
        assert_eq!(
            call(&w, "GET", &path(1), "").1["status_view"]["flags"][0]["code"],
            "row_newer"
        );
        assert_eq!(item(&w, "LINK#0000000000000001"), Some(row));
    }

    #[test]
    fn without_the_right_there_is_no_hint_that_an_id_exists() {
        let w = FakeWorld::default();
        assert_eq!(call(&w, "PUT", &path(1), A).0, 201);
        let ask = |method: &str, path: &str, scope: Option<&str>| {
            let answer = block_on(respond(&w, &request(method, path, scope, A), false, at(0)));
            (answer.status, answer.body)
        };
        let list = format!("/{PLANE}/private-links");
        let empty = format!("/{}/private-links", "0".repeat(16));
        let other = Some("headgate/other");
        assert_eq!(ask("GET", &path(1), other), ask("GET", &path(2), other));
        assert_eq!(
            ask("GET", &path(1), other),
            ask("GET", &format!("/{PLANE}/private-links/no-id"), other)
        );
        assert_eq!(ask("GET", &path(1), other).0, 404);
        assert_eq!(ask("GET", &list, other), (200, r#"{"links":[]}"#.into()));
        assert_eq!(
            ask("GET", &list, other),
            ask("GET", &empty, Some("headgate/links"))
        );
        for scope in ["headgate/links", "headgate/read"] {
            assert_eq!(ask("GET", &path(1), Some(scope)).0, 200);
            assert_eq!(
                ask("PUT", &path(1), Some(scope)),
                ask("PUT", &path(2), Some(scope))
            );
            assert_eq!(ask("DELETE", &path(1), Some(scope)).0, 403);
        }
        assert_eq!(ask("GET", &list, None).0, 401);
        assert!(item(&w, "LINK#0000000000000001").is_some());
    }

    #[test]
    fn bad_requests_say_what_is_wrong() {
        let w = FakeWorld::default();
        let (status, p) = call(&w, "PUT", &path(1), r#"{"region":"r"}"#);
        assert_eq!((status, &p["code"]), (400, &json!("invalid_request")));
        assert_eq!(p["missing"]["aws"], json!(["az_ids", "service_name"]));
        let (status, p) = call(&w, "PUT", "/dp1/private-links/L1", A);
        assert_eq!((status, p["errors"].as_array().unwrap().len()), (400, 2));
        assert_eq!(call(&w, "GET", "/dp1/private-links", "").0, 400);
        assert_eq!(call(&w, "POST", &path(1), A).0, 405);
        assert_eq!(call(&w, "PUT", &format!("/{PLANE}/private-links"), A).0, 405);
        assert_eq!(call(&w, "GET", &format!("/{PLANE}"), "").0, 404);
        let big = "x".repeat(crate::http::BODY_MAX + 1);
        assert_eq!(call(&w, "PUT", &path(1), &big).0, 413);
        assert_eq!(w.writes.get(), 0);
    }

    #[test]
    fn a_list_is_by_creation_then_id_and_can_be_paged() {
        let w = FakeWorld::default();
        for (n, minute) in [(3u8, 0), (1, 1), (2, 1)] {
            let r = request(
                "PUT",
                &path(n),
                Some("headgate/write"),
                &A.replace("svc-a", &format!("s{n}")),
            );
            assert_eq!(block_on(respond(&w, &r, false, at(minute))).status, 201);
        }
        w.table.borrow_mut().seed(Item::from([
            ("pk".into(), Attr::s(format!("PLANE#{PLANE}"))),
            ("sk".into(), Attr::s("LINK#0000000000000004")),
        ]));
        let list = format!("/{PLANE}/private-links");
        let ids = |v: &Value| -> Vec<String> {
            let links = v["links"].as_array().unwrap();
            links
                .iter()
                .map(|l| l["id"].as_str().unwrap().trim_start_matches('0').to_owned())
                .collect()
        };
        let (status, all) = call(&w, "GET", &list, "");
        assert_eq!(
            (status, ids(&all)),
            (200, vec!["3".into(), "1".into(), "2".into()])
        );
        assert_eq!(all["flags"][0]["code"], "row_unreadable");
        assert!(all.get("next_cursor").is_none());
        let mut r = request("GET", &list, Some("headgate/links"), "");
        let mut seen = Vec::new();
        r.query.insert("limit".into(), "2".into());
        loop {
            let answer = block_on(respond(&w, &r, false, at(0)));
            assert_eq!(answer.headers["retry-after"], "20");
            let page: Value = serde_json::from_str(&answer.body).unwrap();
            seen.extend(ids(&page));
            let Some(next) = page["next_cursor"].as_str() else {
                break;
            };
            r.query.insert("cursor".into(), next.into());
        }
        assert_eq!(seen, ["3", "1", "2"]);
        r.query.insert("cursor".into(), cursor_encode("LINK#3"));
        assert_eq!(block_on(respond(&w, &r, false, at(0))).status, 400);
    }

    #[test]
    fn a_poll_is_cheap_and_every_change_is_seen() {
        let w = FakeWorld::default();
        assert_eq!(call(&w, "PUT", &path(1), A).0, 201);
        assert_eq!(observe(&w, 1, "PulumiUp1", 1), "Published");
        let mut r = request("GET", &path(1), Some("headgate/links"), "");
        let get = |r: &Request, minute| block_on(respond(&w, r, false, at(minute)));
        let first = get(&r, 1);
        assert!(first.headers["etag"].starts_with("W/\""));
        assert_eq!(first.headers["retry-after"], "60");
        r.headers
            .insert("if-none-match".into(), first.headers["etag"].clone());
        let same = get(&r, 2);
        assert_eq!((same.status, same.headers["retry-after"].as_str()), (304, "60"));
        let stalled = get(&r, 47);
        assert_eq!(
            (stalled.status, stalled.headers["retry-after"].as_str()),
            (200, "300")
        );
        assert_eq!(observe(&w, 1, "Ansible", 1), "Settled");
        let ready = get(&r, 2);
        assert_eq!((ready.status, ready.headers.get("retry-after")), (200, None));
        r.headers
            .insert("if-none-match".into(), ready.headers["etag"].clone());
        assert_eq!(observe(&w, 1, "Ansible", 1), "Duplicate");
        assert_eq!(get(&r, 2).status, 304);
        assert_eq!(call(&w, "PUT", &path(1), A2).0, 200);
        assert_eq!(get(&r, 2).status, 200);
    }
}
