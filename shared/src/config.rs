//! The only file that reads the environment: once, at cold start, into a typed value per function.
//!
//! A missing or malformed variable is not a crash: the function starts and answers every call with
//! `configuration_error`, naming the variable and the expected form (contract 3).

/// A variable that is missing or malformed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join(" "))]
pub struct ConfigError(
    /// One sentence per fault, naming the variable and the expected form, never its value.
    pub Vec<String>,
);

/// Where variables come from: the process environment in a function, a map in a test.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The process environment.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place that reads the environment"
)]
pub fn from_process(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// `AWS_LAMBDA_LOG_LEVEL` and `AWS_LAMBDA_LOG_FORMAT`, for [`crate::telemetry::init`].
pub fn logging(lookup: Lookup<'_>) -> (Option<String>, Option<String>) {
    (lookup("AWS_LAMBDA_LOG_LEVEL"), lookup("AWS_LAMBDA_LOG_FORMAT"))
}

/// Collects variables and every fault in them.
struct Reader<'a> {
    lookup: Lookup<'a>,
    faults: Vec<String>,
}

impl std::fmt::Debug for Reader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader")
            .field("faults", &self.faults)
            .finish_non_exhaustive()
    }
}

impl<'a> Reader<'a> {
    fn new(lookup: Lookup<'a>) -> Self {
        Self {
            lookup,
            faults: Vec::new(),
        }
    }

    fn optional(&self, name: &str) -> Option<String> {
        (self.lookup)(name)
            .map(|v| v.trim().to_owned())
            .filter(|v| !v.is_empty())
    }

    fn required(&mut self, name: &str, form: &str) -> String {
        self.optional(name).unwrap_or_else(|| {
            self.faults.push(format!("{name} is not set; it must be {form}."));
            String::new()
        })
    }

    fn s3_uri(&mut self, name: &str) -> S3Uri {
        let form = "s3://bucket/key";
        let text = self.required(name, form);
        if text.is_empty() {
            return S3Uri::default();
        }
        S3Uri::parse(&text).unwrap_or_else(|| {
            self.faults
                .push(format!("{name} is malformed; it must be {form}."));
            S3Uri::default()
        })
    }

    fn auth_is_local(&mut self) -> bool {
        match self.optional("HEADGATE_AUTH").as_deref() {
            None | Some("required") => false,
            Some("local") => true,
            Some(_) => {
                self.faults
                    .push("HEADGATE_AUTH is malformed; it must be `required` or `local`.".into());
                false
            }
        }
    }

    /// An endpoint of our own is set.
    fn s3_path_style(&self) -> bool {
        self.optional("AWS_ENDPOINT_URL_S3")
            .or_else(|| self.optional("AWS_ENDPOINT_URL"))
            .is_some()
    }

    fn finish<T>(self, value: T) -> Result<T, ConfigError> {
        if self.faults.is_empty() {
            Ok(value)
        } else {
            Err(ConfigError(self.faults))
        }
    }
}

/// An object in S3.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct S3Uri {
    /// Bucket.
    pub bucket: String,
    /// Key.
    pub key: String,
}

impl S3Uri {
    /// Reads `s3://bucket/key`.
    pub fn parse(text: &str) -> Option<Self> {
        let (bucket, key) = text.strip_prefix("s3://")?.split_once('/')?;
        let sane = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
        let ok = (3..=63).contains(&bucket.len())
            && bucket.chars().all(sane)
            && !key.is_empty()
            && key.len() <= 1024;
        ok.then(|| Self {
            bucket: bucket.to_owned(),
            key: key.to_owned(),
        })
    }
}

/// Environment of the updater.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Updater {
    /// The one table.
    pub table: String,
    /// Name or ARN of the install's stack.
    pub stack: String,
    /// The release list.
    pub releases: S3Uri,
    /// Role CloudFormation uses.
    pub change_set_role: Option<String>,
    /// CodeBuild project of the release check; without it begin starts no check.
    pub check_project: Option<String>,
    /// Is the caller check off (local stack only)?
    pub auth_is_local: bool,
    /// Is S3 somewhere else than AWS, where buckets are no host names?
    pub s3_path_style: bool,
}

impl Updater {
    /// Reads and checks every variable.
    ///
    /// # Errors
    /// Every variable that is missing or malformed.
    pub fn read(lookup: Lookup<'_>) -> Result<Self, ConfigError> {
        let mut r = Reader::new(lookup);
        let table = r.required("TABLE_NAME", "the name of Headgate's DynamoDB table");
        let stack = r.required(
            "STACK_NAME",
            "the name or ARN of the install's CloudFormation stack",
        );
        if !stack.is_empty() && !is_stack(&stack) {
            r.faults
                .push("STACK_NAME is malformed; it must be a stack name or a stack ARN.".into());
        }
        let releases = r.s3_uri("RELEASES_URI");
        let change_set_role = r.optional("CHANGE_SET_ROLE_ARN");
        if change_set_role
            .as_ref()
            .is_some_and(|a| !(a.starts_with("arn:") && a.contains(":role/")))
        {
            r.faults
                .push("CHANGE_SET_ROLE_ARN is malformed; it must be the ARN of an IAM role.".into());
        }
        let check_project = r.optional("RELEASE_CHECK_PROJECT");
        let auth_is_local = r.auth_is_local();
        let s3_path_style = r.s3_path_style();
        r.finish(Self {
            table,
            stack,
            releases,
            change_set_role,
            check_project,
            auth_is_local,
            s3_path_style,
        })
    }

    /// Partition key of this install; `<stack>` is the stack's name, also when an ARN is configured.
    pub fn pk(&self) -> String {
        format!("INSTALL#{}", stack_name(&self.stack))
    }
}

/// Environment of the model check: the updater's, with the project required, and the models' parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelCheck {
    /// What both functions of an install share.
    pub install: Updater,
    /// SSM parameter that lists the models this install has configured.
    pub models_parameter: Option<String>,
}

impl ModelCheck {
    /// Reads and checks every variable.
    ///
    /// # Errors
    /// Every variable that is missing or malformed.
    pub fn read(lookup: Lookup<'_>) -> Result<Self, ConfigError> {
        let install = Updater::read(lookup);
        let mut r = Reader::new(lookup);
        r.required(
            "RELEASE_CHECK_PROJECT",
            "the name of the CodeBuild project of the release check",
        );
        let models_parameter = r.optional("MODELS_PARAMETER");
        let missing = r.faults;
        match install {
            Ok(install) if missing.is_empty() => Ok(Self {
                install,
                models_parameter,
            }),
            Ok(_) => Err(ConfigError(missing)),
            Err(ConfigError(mut faults)) => {
                faults.extend(missing);
                Err(ConfigError(faults))
            }
        }
    }
}

/// Environment of link-details.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkDetails {
    /// The one table.
    pub table: String,
    /// Buckets an event's pointer may name.
    pub outputs_buckets: Vec<String>,
    /// Is the caller check off (local stack only)?
    pub auth_is_local: bool,
    /// Is S3 somewhere else than AWS, where buckets are no host names?
    pub s3_path_style: bool,
}

impl LinkDetails {
    /// Reads and checks every variable.
    ///
    /// # Errors
    /// Every variable that is missing or malformed.
    pub fn read(lookup: Lookup<'_>) -> Result<Self, ConfigError> {
        let mut r = Reader::new(lookup);
        let table = r.required("TABLE_NAME", "the name of Headgate's DynamoDB table");
        let buckets = r.optional("OUTPUTS_BUCKETS").unwrap_or_default();
        let outputs_buckets: Vec<String> = buckets
            .split(',')
            .map(|b| b.trim().to_owned())
            .filter(|b| !b.is_empty())
            .collect();
        let is_bucket = |b: &String| S3Uri::parse(&format!("s3://{b}/key")).is_some();
        if !outputs_buckets.iter().all(is_bucket) {
            r.faults
                .push("OUTPUTS_BUCKETS is malformed; it must be bucket names with commas between.".into());
        }
        let auth_is_local = r.auth_is_local();
        let s3_path_style = r.s3_path_style();
        r.finish(Self {
            table,
            outputs_buckets,
            auth_is_local,
            s3_path_style,
        })
    }
}

/// Environment of the rebuild gates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RebuildGate {
    /// The one table.
    pub table: String,
    /// Bucket of plans, states, manifests, evidence and reports.
    pub evidence_bucket: String,
    /// Is the caller check off (local stack only)?
    pub auth_is_local: bool,
    /// Is S3 somewhere else than AWS, where buckets are no host names?
    pub s3_path_style: bool,
}

impl RebuildGate {
    /// Reads and checks every variable.
    ///
    /// # Errors
    /// Every variable that is missing or malformed.
    pub fn read(lookup: Lookup<'_>) -> Result<Self, ConfigError> {
        let mut r = Reader::new(lookup);
        let table = r.required("TABLE_NAME", "the name of Headgate's DynamoDB table");
        let form = "the name of the bucket for evidence and reports";
        let evidence_bucket = r.required("EVIDENCE_BUCKET", form);
        if !evidence_bucket.is_empty() && S3Uri::parse(&format!("s3://{evidence_bucket}/key")).is_none() {
            r.faults
                .push(format!("EVIDENCE_BUCKET is malformed; it must be {form}."));
        }
        let auth_is_local = r.auth_is_local();
        let s3_path_style = r.s3_path_style();
        r.finish(Self {
            table,
            evidence_bucket,
            auth_is_local,
            s3_path_style,
        })
    }
}

/// Environment of the domain provisioner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DomainProvisioner {
    /// The one table.
    pub table: String,
    /// The cell and its rules.
    pub cell: crate::domains::model::Cell,
    /// SSM managed-node id of the cell's host; empty when lookup only.
    pub node: String,
    /// SSM document that runs `up`, `down`, `show`; empty when lookup only.
    pub document: String,
    /// State machine `domain-create`.
    pub saga: String,
    /// Zone in which records are published.
    pub zone: Option<String>,
    /// `host:port` of the resolver for public DNS; without it the system's own. For tests and the local stack.
    pub resolver: Option<String>,
    /// Is the caller check off (local stack only)?
    pub auth_is_local: bool,
}

impl DomainProvisioner {
    /// Reads and checks every variable.
    ///
    /// # Errors
    /// Every variable that is missing or malformed.
    pub fn read(lookup: Lookup<'_>) -> Result<Self, ConfigError> {
        use crate::domains::model::{Cell, PortRange, SweepPolicy};
        use crate::domains::names::{NameRules, OriginSuffix};
        let mut r = Reader::new(lookup);
        let table = r.required("TABLE_NAME", "the name of Headgate's DynamoDB table");
        // Not trimmed by dots: a missing leading dot is the classic mistake and is said (spec/domains.md 1.7).
        let suffix =
            OriginSuffix::parse(&r.optional("ORIGIN_SUFFIX").unwrap_or_default()).unwrap_or_else(|e| {
                r.faults.push(format!("ORIGIN_SUFFIX is malformed; {e}."));
                None
            });
        let ports = r.optional("PORT_RANGE").unwrap_or_else(|| "20000-29999".into());
        let ports = PortRange::parse(&ports).unwrap_or_else(|e| {
            r.faults.push(format!("PORT_RANGE is malformed; {e}."));
            PortRange {
                low: 20_000,
                high: 29_999,
            }
        });
        // Without a suffix nothing is ever allocated or sent, so the rest may be absent.
        let lookup_only = suffix.is_none();
        let mut needed = |name: &str, form: &str| {
            if lookup_only {
                r.optional(name).unwrap_or_default()
            } else {
                r.required(name, form)
            }
        };
        let name = needed("CELL", "the cell's name, e.g. pds1.eu");
        let node = needed(
            "CELL_NODE_ID",
            "the SSM managed-node id of the cell's host, e.g. mi-0123456789abcdef0",
        );
        let document = needed(
            "HOST_DOCUMENT",
            "the name of the SSM document that runs up, down and show",
        );
        let saga = r.required("SAGA_ARN", "the ARN of the state machine domain-create");
        let is_machine = saga.starts_with("arn:") && saga.contains(":stateMachine:");
        if !saga.is_empty() && !is_machine {
            r.faults
                .push("SAGA_ARN is malformed; it must be the ARN of the state machine domain-create.".into());
        }
        let sweep = match r.optional("SWEEP_POLICY").as_deref() {
            None | Some("report") => SweepPolicy::Report,
            Some("retire") => SweepPolicy::Retire,
            Some(_) => {
                r.faults
                    .push("SWEEP_POLICY is malformed; it must be `report` or `retire`.".into());
                SweepPolicy::Report
            }
        };
        let certificate_for = r.optional("CERTIFICATE_FOR");
        let label = |s: &String| {
            (1..=63).contains(&s.len())
                && s.bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
                && !s.starts_with('-')
                && !s.ends_with('-')
        };
        if certificate_for.as_ref().is_some_and(|s| !label(s)) {
            r.faults
                .push("CERTIFICATE_FOR is malformed; it must be one host label, e.g. autoconfig.".into());
        }
        let zone = r.optional("HOSTED_ZONE_ID");
        let resolver = r.optional("DNS_RESOLVER");
        if resolver
            .as_ref()
            .is_some_and(|a| a.parse::<std::net::SocketAddr>().is_err())
        {
            r.faults.push(
                "DNS_RESOLVER is malformed; it must be an address and a port, e.g. 127.0.0.1:5353.".into(),
            );
        }
        let auth_is_local = r.auth_is_local();
        let names = NameRules {
            zone: suffix.as_ref().map(|s| s.zone().to_owned()),
            // Names for tests are hosted where the callers are not checked either: the local stack only.
            allow_test: auth_is_local,
            certificate_for,
        };
        r.finish(Self {
            table,
            cell: Cell {
                name,
                suffix,
                ports,
                names,
                sweep,
            },
            node,
            document,
            saga,
            zone,
            resolver,
            auth_is_local,
        })
    }
}

/// The name in a stack name or ARN.
pub fn stack_name(name_or_arn: &str) -> &str {
    match name_or_arn.split_once(":stack/") {
        Some((_, rest)) => rest.split('/').next().unwrap_or(rest),
        None => name_or_arn,
    }
}

/// Letters, digits and hyphens, starting with a letter, at most 128; or an ARN
/// (CloudFormation API reference, CreateStack, StackName).
fn is_stack(s: &str) -> bool {
    let name = stack_name(s);
    let chars = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    let first = name.chars().next().is_some_and(|c| c.is_ascii_alphabetic());
    chars && first && name.len() <= 128 && (name == s || s.starts_with("arn:"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn read(vars: &[(&str, &str)]) -> Result<Updater, ConfigError> {
        let map: BTreeMap<String, String> = vars.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        Updater::read(&|n| map.get(n).cloned())
    }

    #[test]
    fn every_fault_is_listed_with_its_form_and_without_its_value() {
        let e = read(&[
            ("RELEASES_URI", "hunter2"),
            ("STACK_NAME", "1 bad"),
            ("HEADGATE_AUTH", "off"),
        ])
        .unwrap_err();
        let text = e.to_string();
        for want in [
            "TABLE_NAME is not set",
            "STACK_NAME is malformed",
            "s3://bucket/key",
            "HEADGATE_AUTH",
        ] {
            assert!(text.contains(want), "{want} in {text}");
        }
        assert!(!text.contains("hunter2"));
    }

    #[test]
    fn link_details_needs_a_table_and_takes_a_list_of_buckets() {
        let read = |vars: &[(&str, &str)]| {
            let map: BTreeMap<String, String> =
                vars.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
            LinkDetails::read(&|n| map.get(n).cloned())
        };
        let c = read(&[("TABLE_NAME", "t"), ("OUTPUTS_BUCKETS", " one-b , two-b,")]).unwrap();
        assert_eq!(c.outputs_buckets, ["one-b", "two-b"]);
        assert!(read(&[("TABLE_NAME", "t")]).unwrap().outputs_buckets.is_empty());
        let e = read(&[("OUTPUTS_BUCKETS", "s3://x")]).unwrap_err().to_string();
        assert!(e.contains("TABLE_NAME") && e.contains("OUTPUTS_BUCKETS"), "{e}");
    }

    #[test]
    fn the_partition_is_the_stacks_name_also_for_an_arn() {
        let arn = "arn:aws:cloudformation:eu-west-1:123456789012:stack/shop/11-22";
        for stack in ["shop", arn] {
            let c = read(&[
                ("TABLE_NAME", "t"),
                ("STACK_NAME", stack),
                ("RELEASES_URI", "s3://bkt/releases.json"),
            ]);
            assert_eq!(c.unwrap().pk(), "INSTALL#shop");
        }
    }

    fn provisioner(vars: &[(&str, &str)]) -> Result<DomainProvisioner, ConfigError> {
        let map: BTreeMap<String, String> = vars.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        DomainProvisioner::read(&|n| map.get(n).cloned())
    }

    const SAGA: (&str, &str) = (
        "SAGA_ARN",
        "arn:aws:states:eu-west-1:1:stateMachine:domain-create",
    );

    #[test]
    fn c08_a_suffix_without_its_dot_names_the_key_and_the_right_value() {
        let e =
            provisioner(&[("TABLE_NAME", "t"), SAGA, ("ORIGIN_SUFFIX", "pds1.example.test")]).unwrap_err();
        let text = e.to_string();
        assert!(
            text.contains("ORIGIN_SUFFIX") && text.contains("use .pds1.example.test"),
            "{text}"
        );
    }

    #[test]
    fn lookup_only_needs_no_host_and_a_cell_needs_all_of_it() {
        let c = provisioner(&[("TABLE_NAME", "t"), SAGA]).unwrap();
        assert!(c.cell.suffix.is_none() && !c.cell.names.allow_test);
        let e = provisioner(&[
            ("ORIGIN_SUFFIX", ".pds1.example.test"),
            ("PORT_RANGE", "1-2"),
            ("SWEEP_POLICY", "x"),
            ("CERTIFICATE_FOR", "a.b"),
        ])
        .unwrap_err();
        for name in [
            "TABLE_NAME",
            "PORT_RANGE",
            "CELL ",
            "CELL_NODE_ID",
            "HOST_DOCUMENT",
            "SAGA_ARN",
            "SWEEP_POLICY",
            "CERTIFICATE_FOR",
        ] {
            assert!(e.0.iter().any(|f| f.starts_with(name)), "{name} in {e}");
        }
    }
}
