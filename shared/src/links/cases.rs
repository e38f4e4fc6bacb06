//! The numbered cases of spec/links.md section 4, read from `cases.txt`, and one player for every table: the
//! one in memory here, the real expressions in the function's tests. Both compare whole items.

use super::api;
use super::model::{FlowId, LinkId, PlaneId, Stage};
use super::run::{self, Outputs, Processed, Stop, World};
use super::store::link_key;
use crate::http::{Request, Response, hex};
use crate::store::{Attr, Cond, Item, Key, Table, Write};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;

/// Bucket the pointers of the cases name.
pub const BUCKET: &str = "outputs";

/// A case.
#[derive(Debug, Clone)]
pub struct Case {
    /// E.g. `T01`.
    pub id: String,
    /// What it is about.
    pub name: String,
    /// Every case has a plane of its own, so that all of them fit one table.
    pub plane: PlaneId,
    before: String,
    events: Vec<String>,
    after: String,
    outcome: String,
}

/// An object that a case's pointer names: key and bytes.
pub type Object = (String, Vec<u8>);

/// Details by their name in the cases. The spacing, the order of keys, the number beyond 2^53 and the escapes
/// must come out as they went in.
pub fn details(name: &str) -> &'static str {
    match name {
        "D1" => {
            r#"{ "service_name": "svc-a", "dns_entries":[{"dns_name":"vpce-0aaaaaaaaaaaaaaaa-abcd1234.svc-a.us-east-1.vpce.amazonaws.com","hosted_zone_id":"Z7H"},{"dns_name":"vpce-0aaaaaaaaaaaaaaaa-abcd1234-us-east-1a.svc-a.us-east-1.vpce.amazonaws.com","hosted_zone_id":"Z7H"}],"z":9007199254740993.10, "a":"\u00e9 é \ud800"}"#
        }
        "D1b" => {
            r#"{"service_name":"svc-a","dns_entries":[{"dns_name":"vpce-0aaaaaaaaaaaaaaaa-abcd1234.svc-a.us-east-1.vpce.amazonaws.com"},{"dns_name":"vpce-0aaaaaaaaaaaaaaaa-abcd1234-us-east-1a.svc-a.us-east-1.vpce.amazonaws.com"},{"dns_name":"vpce-0aaaaaaaaaaaaaaaa-abcd1234-us-east-1b.svc-a.us-east-1.vpce.amazonaws.com"}]}"#
        }
        "D2" => {
            r#"{"dns_entries":[{"dns_name":"vpce-0bbbbbbbbbbbbbbbb-abcd1234.svc-b.us-east-1.vpce.amazonaws.com"}],"service_name":"svc-b"}"#
        }
        "DZ" => r#"{"ip":"10.0.0.2","service_name":"svc-a"}"#,
        _ => "null",
    }
}

/// The configuration every row of the cases has.
pub const CONFIG: &str = r#"{ "region":"us-east-1","az_ids":["use1-az1"], "service_name":"svc-a" }"#;

fn time(name: &str) -> &'static str {
    match name {
        "T0" => "2026-09-10T08:05:00Z",
        "T1" => "2026-09-10T12:00:40.123456Z",
        "T2" => "2026-09-10T12:11:05Z",
        _ => "2026-09-10T12:13:30Z",
    }
}

/// The time of a token's event in the cases: converge 6 was earlier, then each stage has its own.
fn time_of(seq: u64, rank: u64) -> &'static str {
    match (seq, rank) {
        (..=6, _) => time("T0"),
        (_, 1) => time("T1"),
        (_, 2) => time("T2"),
        _ => time("T3"),
    }
}

/// `L1`, `0000000000000b01` or the spelling with colons, as it stands in an event.
fn spelled(name: &str) -> String {
    match name.strip_prefix('L') {
        Some(n) => format!("0000000000000b0{n}"),
        None => name.to_owned(),
    }
}

fn link(name: &str) -> Option<LinkId> {
    LinkId::parse(&spelled(name))
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or(0)
}

/// All cases, in the order of the spec.
pub fn all() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for line in include_str!("cases.txt").lines().filter(|l| !l.starts_with('#')) {
        let (word, rest) = line.trim().split_once(' ').unwrap_or((line, ""));
        let rest = rest.trim().to_owned();
        if !line.starts_with(' ') {
            let plane = format!("0e8f3a00000000{}", word.trim_start_matches('T'));
            let Some(plane) = PlaneId::parse(&plane) else {
                continue;
            };
            let empty = String::new;
            let (id, before, after, outcome) = (word.to_owned(), empty(), empty(), empty());
            cases.push(Case {
                id,
                name: rest,
                plane,
                before,
                events: vec![],
                after,
                outcome,
            });
            continue;
        }
        let Some(case) = cases.last_mut() else { continue };
        match word {
            "before" => case.before = rest,
            "events" => case.events = rest.split(" then ").map(str::to_owned).collect(),
            "after" => case.after = rest,
            _ => case.outcome = rest,
        }
    }
    cases
}

/// The text between `open` and the next `close`.
fn between<'a>(text: &'a str, open: &str, close: char) -> Option<&'a str> {
    text.split_once(open)?.1.split_once(close).map(|(inner, _)| inner)
}

impl Case {
    fn row(&self, text: &str) -> Option<Item> {
        let (name, rest) = text.split_once(": ")?;
        let word = |key: &str| -> Option<&str> {
            let (_, after) = rest.split_once(&format!("{key} "))?;
            after.split(' ').next().filter(|w| *w != "-")
        };
        let mut parts = rest.split(' ');
        let (generation, status) = (parts.next()?.strip_prefix('g')?, parts.next()?);
        let key = link_key(self.plane, link(name)?);
        let s = |v: &str| Attr::s(v);
        let mut item = Item::from([
            ("pk".into(), s(&key.pk)),
            ("sk".into(), s(&key.sk)),
            ("schema".into(), Attr::n(1)),
            ("id".into(), s(&spelled(name))),
            ("config".into(), s(CONFIG)),
            ("provider".into(), s("aws")),
            ("service_identity".into(), s("svc-a")),
            ("generation".into(), Attr::n(generation)),
            ("status".into(), s(status)),
            ("created_at".into(), s("2026-09-01T00:00:00Z")),
            ("updated_at".into(), s("2026-09-02T00:00:00Z")),
            // What this build does not know must survive.
            (
                "future".into(),
                Attr::L(vec![
                    Attr::N("12345678901234567890123".into()),
                    Attr::B(vec![0, 255]),
                ]),
            ),
        ]);
        let mut put = |k: &str, v: Attr| item.insert(k.to_owned(), v);
        if let Some((w_gen, order)) = word("tok").and_then(|t| t.strip_prefix('g')?.split_once(':')) {
            let (seq, rank) = order.split_once('.')?;
            put("w_gen", Attr::n(w_gen));
            put("w_order", Attr::n(format!("{seq}{rank}")));
            put("w_converge", s(&format!("converge-{seq}")));
        }
        if let Some(det) = word("det") {
            let (name, token) = match det.split_once('@') {
                Some((name, token)) => (name, token),
                None => (
                    det,
                    word("tok")
                        .and_then(|t| Some(t.split_once(':')?.1))
                        .unwrap_or("7.1"),
                ),
            };
            let (seq, rank) = token.split_once('.')?;
            put("details", s(details(name)));
            put("details_at", s(time_of(number(seq), number(rank))));
            let stages = [Stage::PulumiUp1, Stage::Ansible, Stage::Converge];
            put(
                "details_stage",
                s(stages.into_iter().find(|s| s.rank() == number(rank))?.as_str()),
            );
        }
        if let Some(error) = between(rest, "err \"", '"') {
            put("error", s(error));
        }
        if let Some(at) = word("obs") {
            put("observed_at", s(time(at)));
        }
        if rest.ends_with(" net") {
            put("w_network", Attr::Bool(true));
        }
        Some(item)
    }

    /// The rows to start with.
    pub fn before(&self) -> Vec<Item> {
        self.before.split("; ").filter_map(|r| self.row(r)).collect()
    }

    /// Every item of the plane afterwards, in the order of their keys.
    pub fn after(&self) -> Vec<Item> {
        let before = self.before();
        self.after
            .split("; ")
            .filter_map(|text| match text.split_once(": ") {
                Some((name, "unchanged")) => {
                    let key = link_key(self.plane, link(name)?);
                    before.iter().find(|i| Key::of(i).as_ref() == Some(&key)).cloned()
                }
                _ => self.row(text),
            })
            .collect()
    }

    fn results(list: &str) -> String {
        let mut out = Vec::new();
        for element in list.split(", ").filter(|e| !e.is_empty()) {
            let mut words = element.split(' ');
            let (Some(id), Some(status)) = (words.next(), words.next()) else {
                out.push(element.to_owned());
                continue;
            };
            let rest = words.collect::<Vec<_>>().join(" ");
            let (name, generation) = id.split_once('@').unwrap_or((id, "null"));
            let (status, details, error) = match (status, rest.as_str()) {
                ("ok", d) => ("provisioned", details(d), "null"),
                ("failed", e) => ("failed", "null", e),
                (other, d) => (other, details(d), "null"),
            };
            let mut text = String::from("{");
            if name != "(no" {
                let _ = write!(text, r#""id":"{}","#, spelled(name));
            }
            if generation != "null" {
                let _ = write!(text, r#""generation":{generation},"#);
            }
            let _ = write!(
                text,
                r#""status":"{status}","details":{details},"error":{error}}}"#
            );
            out.push(text);
        }
        format!("[{}]", out.join(","))
    }

    fn event(&self, index: usize, text: &str) -> Option<(String, Option<Object>)> {
        let (stage, rest) = text.split_once('#')?;
        let (seq, rest) = rest.split_once(' ')?;
        let pins: Vec<String> = between(rest, "pin[", ']')?
            .split(", ")
            .filter_map(|p| p.split_once('@'))
            .map(|(id, g)| format!(r#"{{"id":"{}","generation":{g}}}"#, spelled(id)))
            .collect();
        let mut object = None;
        let outputs = if rest.contains("outputs_ref") {
            let list = between(rest, "outputs_ref->[", ']').unwrap_or("L1@1 ok D1");
            let bytes = format!(r#"{{"link_results":{}}}"#, Self::results(list)).into_bytes();
            let (key, bad) = (format!("{}/{index}.json", self.id), rest.contains("(bad sha)"));
            let sha = if bad {
                "0".repeat(64)
            } else {
                hex(&Sha256::digest(&bytes))
            };
            let pointer = format!(
                r#""outputs_ref":{{"bucket":"{BUCKET}","key":"{key}","version_id":null,"bytes":{},"sha256":"{sha}"}}"#,
                bytes.len()
            );
            object = Some((key, bytes));
            pointer
        } else if rest.contains("res null") {
            r#""outputs":{"link_results":null}"#.to_owned()
        } else if let Some(list) = rest.split_once("res[").and_then(|(_, r)| r.split_once(']')) {
            format!(
                r#""outputs":{{"link_results":{},"hmac_keys":"[never read]"}}"#,
                Self::results(list.0)
            )
        } else {
            r#""outputs":{}"#.to_owned()
        };
        let result = if rest.contains("result=failed") {
            "failed"
        } else {
            "succeeded"
        };
        let at = match stage {
            "Ansible" => time("T2"),
            "Converge" => time("T3"),
            _ => time("T1"),
        };
        let network = if rest.contains("network{was:false->true}") {
            r#","network":{"uses_private_network":true,"was":false}"#
        } else {
            ""
        };
        let event = format!(
            r#"{{"schema":1,"data_plane_id":"{}","converge_id":"converge-{seq}","converge_seq":{seq},"stage":"{stage}","result":"{result}","completed_at":"{at}","pinned_links":[{}]{network},{outputs}}}"#,
            self.plane,
            pins.join(",")
        );
        Some((event, object))
    }

    /// The events in their order, each with the object its pointer names.
    pub fn events(&self) -> Vec<(String, Option<Object>)> {
        self.events
            .iter()
            .enumerate()
            .filter_map(|(i, e)| self.event(i, e))
            .collect()
    }

    /// The outcome of the last event, in the words of the spec.
    fn told(&self, result: &Result<Processed, Stop>) -> String {
        let one = |p: &Processed| {
            p.outcomes
                .values()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(", ")
        };
        match result {
            Err(Stop::Reject(_)) => "Reject".into(),
            Err(Stop::Unread(e)) => e.to_string(),
            Ok(p) if p.event != "Processed" => format!("*={}", p.event),
            Ok(p) if p.outcomes.len() == 1 => one(p),
            Ok(p) => {
                let named = p.outcomes.iter().map(|(id, o)| {
                    let text = id.to_string();
                    format!("L{}={o}", text.trim_start_matches("0000000000000b0"))
                });
                named.collect::<Vec<_>>().join(", ")
            }
        }
    }

    /// Plays the case on a table and compares outcome and whole items with the spec.
    ///
    /// # Errors
    /// What differs.
    pub async fn play<T: Table, O: Outputs>(&self, table: &T, outputs: &O) -> Result<(), String> {
        self.play_in(table, outputs, BUCKET).await
    }

    /// The same with the objects in another bucket.
    ///
    /// # Errors
    /// What differs.
    pub async fn play_in<T: Table, O: Outputs>(
        &self,
        table: &T,
        outputs: &O,
        bucket: &str,
    ) -> Result<(), String> {
        for item in self.before() {
            let key = Key::of(&item).ok_or("a row without a key")?;
            // A starting state: whatever an earlier run left is replaced.
            table
                .write(&[Write::put(key, item, Cond::Always)], "")
                .await
                .map_err(|e| e.to_string())?;
        }
        let world = World {
            table,
            outputs,
            buckets: &[bucket.to_owned()],
        };
        let mut last = None;
        for (event, _) in self.events() {
            let event = event.replace(
                &format!("\"bucket\":\"{BUCKET}\""),
                &format!("\"bucket\":\"{bucket}\""),
            );
            last = Some(run::process(&world, &event, || true).await);
        }
        let told = last
            .as_ref()
            .map_or_else(|| "no event".to_owned(), |r| self.told(r));
        if told != self.outcome {
            return Err(format!("{}: outcome {told}, expected {}", self.id, self.outcome));
        }
        let query = crate::store::Query {
            pk: super::store::partition(self.plane),
            sk_prefix: String::new(),
            descending: false,
            limit: None,
            after: None,
        };
        let items = table.query(&query).await.map_err(|e| e.to_string())?.items;
        if items != self.after() {
            return Err(format!(
                "{}: rows\n{items:#?}\nexpected\n{:#?}",
                self.id,
                self.after()
            ));
        }
        Ok(())
    }
}

/// A case of the reader (spec/links.md 3.10): a row, and what a reader is told about it.
#[derive(Debug, Clone)]
pub struct Reader {
    /// E.g. `R01`.
    pub id: &'static str,
    /// The stored row.
    pub item: Item,
    phase: &'static str,
    host: Option<&'static str>,
    ip: Option<&'static str>,
}

const REGIONAL: &str = "vpce-0aaaaaaaaaaaaaaaa-abcd1234.svc-a.us-east-1.vpce.amazonaws.com";
const ZONAL_FIRST: &str = r#"{"dns_entries":[{"dns_name":"vpce-0aaaaaaaaaaaaaaaa-abcd1234-us-east-1a.svc-a.us-east-1.vpce.amazonaws.com"},{"dns_name":"vpce-0aaaaaaaaaaaaaaaa-abcd1234.svc-a.us-east-1.vpce.amazonaws.com"}]}"#;
const AZURE: (&str, &str) = ("azure", r#"{"service_name":"svc-a","location":"westeurope"}"#);
const GCP: (&str, &str) = (
    "gcp",
    r#"{"service_attachment":"svc-a","region":"r","dns_zone_name":"acme","dns_record_names":["db"]}"#,
);

/// When the readers of the cases ask.
pub const READ_AT: &str = "2026-09-10T12:46:40Z";

/// R1 to R10.
pub fn readers() -> Vec<Reader> {
    let aws = ("aws", CONFIG);
    let d1 = Some(details("D1"));
    let fresh = "2026-09-10T12:45:00Z";
    // 46 minutes before READ_AT.
    let old = "2026-09-10T12:00:40Z";
    let dz = Some(details("DZ"));
    let empty = Some(r#"{"dns_entries":[]}"#);
    let sa = Some(r#"{"service_attachment":"svc-a"}"#);
    let row = |id, (provider, config): (&str, &str), status: &str, details: Option<&str>, at: &str| {
        let key = link_key(READERS, LINK);
        let s = |v: &str| Attr::s(v);
        let mut item = Item::from([
            ("pk".into(), s(&key.pk)),
            ("sk".into(), s(&key.sk)),
            ("schema".into(), Attr::n(1)),
            ("config".into(), s(config)),
            ("provider".into(), s(provider)),
            ("service_identity".into(), s("svc-a")),
            ("generation".into(), Attr::n(1)),
            ("status".into(), s(status)),
            ("created_at".into(), s("2026-09-01T00:00:00Z")),
            ("updated_at".into(), s("2026-09-02T00:00:00Z")),
        ]);
        if let Some(details) = details {
            item.insert("details".into(), s(details));
            item.insert("details_at".into(), s(at));
            item.insert("details_stage".into(), s("PulumiUp1"));
        }
        if status != "pending" {
            item.insert("observed_at".into(), s(fresh));
        }
        if status == "failed" {
            item.insert("error".into(), s("service not found"));
        }
        (id, item)
    };
    let told = |(id, item), phase, host, ip| Reader {
        id,
        item,
        phase,
        host,
        ip,
    };
    vec![
        told(row("R01", aws, "pending", None, fresh), "waiting", None, None),
        told(
            row("R02", aws, "pending", d1, fresh),
            "dns_ready",
            Some(REGIONAL),
            None,
        ),
        told(
            row("R03", aws, "pending", Some(ZONAL_FIRST), fresh),
            "dns_ready",
            Some(REGIONAL),
            None,
        ),
        told(row("R04", aws, "pending", empty, fresh), "waiting", None, None),
        told(
            row("R05", aws, "provisioned", d1, fresh),
            "ready",
            Some(REGIONAL),
            None,
        ),
        told(row("R06", aws, "failed", None, fresh), "failed", None, None),
        told(
            row("R07", aws, "pending", d1, old),
            "stalled",
            Some(REGIONAL),
            None,
        ),
        told(
            row("R08", GCP, "provisioned", sa, fresh),
            "ready",
            Some("db.acme"),
            None,
        ),
        told(
            row("R09", AZURE, "pending", dz, fresh),
            "dns_ready",
            None,
            Some("10.0.0.2"),
        ),
        told(row("R10", GCP, "pending", None, fresh), "waiting", None, None),
    ]
}

const READERS: PlaneId = PlaneId(FlowId::of(0x0e8f_3a00_0000_0099));
const LINK: LinkId = LinkId(FlowId::of(0xb01));

impl Reader {
    /// Stores the row, reads it over the API, and compares phase, host and address with the spec.
    ///
    /// # Errors
    /// What differs.
    pub async fn play<T: Table>(&self, table: &T) -> Result<Response, String> {
        let key = Key::of(&self.item).ok_or("a row without a key")?;
        // A starting state: whatever an earlier case left is replaced.
        let put = Write::put(key, self.item.clone(), Cond::Always);
        table.write(&[put], "").await.map_err(|e| e.to_string())?;
        let event = json!({
            "rawPath": format!("/data-planes/{READERS}/private-links/{LINK}"),
            "requestContext": {"http": {"method": "GET"}},
        });
        let request = Request::parse(&event)?;
        let now = READ_AT.parse().map_err(|_| "READ_AT is no time")?;
        let answer = api::respond(table, &request, true, now).await;
        let link: Value =
            serde_json::from_str(&answer.body.replace(r"\ud800", "")).map_err(|e| e.to_string())?;
        let told = (
            link.pointer("/phase").and_then(Value::as_str),
            link.pointer("/connect/host").and_then(Value::as_str),
            link.pointer("/connect/ip").and_then(Value::as_str),
        );
        let want = (Some(self.phase), self.host, self.ip);
        if told == want {
            Ok(answer)
        } else {
            Err(format!("{}: {told:?}, expected {want:?}", self.id))
        }
    }
}

/// One test per case, named by its id, that calls the given function with the id. Used in memory here and
/// against DynamoDB by the black-box tests.
#[macro_export]
macro_rules! link_cases {
    ($run:path) => {
        $crate::link_cases! { $run,
            t01_early_success_fills_dns_claims_nothing "T01"
            t02_settle_after_early_status_and_observed_at_land_details_byte_equal "T02"
            t03_early_event_lost_settle_alone_is_enough "T03"
            t04_early_failure_recorded_in_full "T04"
            t05_early_pinned_link_absent_from_results "T05"
            t06_settle_absent_result_never_demotes "T06"
            t07_edited_before_the_early_write "T07"
            t08_edited_between_early_and_settle "T08"
            t09_duplicate_early "T09"
            t10_duplicate_settle "T10"
            t11_settle_delivered_before_early "T11"
            t12_older_converge_s_settle_arrives_last "T12"
            t13_older_converge_s_early_failure_arrives_last "T13"
            t14_steady_state_early_on_a_provisioned_row "T14"
            t15_steady_state_early_dns_entries_changed "T15"
            t16_settle_failure_demotes_a_provisioned_row "T16"
            t17_failed_row_customer_fixed_their_side_early_success "T17"
            t18_failed_row_settle_success "T18"
            t19_early_failure_then_settle_failure_observed_at_moves "T19"
            t20_three_links_ok_failed_absent "T20"
            t21_link_deleted_before_the_event_no_resurrection "T21"
            t22_link_results_key_missing "T22"
            t23_link_results_is_null "T23"
            t24_one_garbage_element_does_not_poison_the_rest "T24"
            t25_unknown_result_status "T25"
            t26_result_carries_a_generation_that_is_not_the_pin "T26"
            t27_result_without_a_generation_uses_the_pin "T27"
            t28_result_for_a_link_nobody_pinned "T28"
            t29_pulumiup1_failed_as_a_whole_outputs_are_stale "T29"
            t30_awaitdns1_completed "T30"
            t31_pulumiup2_completed_with_outputs "T31"
            t32_outputs_by_s3_pointer "T32"
            t33_pointer_hash_mismatch "T33"
            t34_failed_without_a_message "T34"
            t35_settle_success_with_null_details_keeps_the_early_details "T35"
            t36_first_link_on_the_plane_uses_private_network_flips "T36"
            t37_azure_details "T37"
            t38_ids_with_and_without_colons_are_the_same_link "T38"
            t39_pulumiup1_re_run_inside_converge_7_after_an_edit_re_pins_generation_2 "T39"
            t40_pending_details_newer_converge_fails_early "T40"
        }
    };
    ($run:path, $($name:ident $id:literal)*) => { $(#[test] fn $name() { $run($id); })* };
}

/// One test per case of the reader, as [`link_cases!`].
#[macro_export]
macro_rules! link_readers {
    ($run:path) => {
        $crate::link_cases! { $run,
            r01_pending_without_details "R01"
            r02_pending_with_a_regional_and_a_zonal_name "R02"
            r03_the_zonal_name_first "R03"
            r04_no_dns_entries "R04"
            r05_provisioned "R05"
            r06_failed_with_an_error "R06"
            r07_details_46_minutes_old "R07"
            r08_gcp_provisioned "R08"
            r09_azure_pending_with_an_address "R09"
            r10_gcp_pending_without_details "R10"
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::fake::{FakeWorld, block_on};

    fn case(id: &str) {
        let case = all().into_iter().find(|c| c.id == id).unwrap();
        let mut world = FakeWorld::default();
        for (_, object) in case.events() {
            if let Some((key, bytes)) = object {
                world.objects.insert((BUCKET.to_owned(), key, None), bytes);
            }
        }
        block_on(case.play(&world, &world)).unwrap();
    }

    #[test]
    fn the_cases_are_complete_and_read_whole() {
        let all = all();
        let ids: Vec<String> = (1..=40).map(|n| format!("T{n:02}")).collect();
        assert_eq!(all.iter().map(|c| c.id.clone()).collect::<Vec<_>>(), ids);
        for c in &all {
            assert_eq!(c.events().len(), c.events.len(), "{}", c.id);
            let rows = if c.before == "no item" {
                0
            } else {
                c.before.split("; ").count()
            };
            assert_eq!(c.before().len(), rows, "{}", c.id);
            assert_eq!(c.after().len(), rows, "{}", c.id);
        }
    }

    crate::link_cases!(case);

    fn reader(id: &str) {
        let reader = readers().into_iter().find(|r| r.id == id).unwrap();
        block_on(reader.play(&FakeWorld::default())).unwrap();
    }

    crate::link_readers!(reader);
}
