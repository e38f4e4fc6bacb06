//! Rebuild gates: PASS, or exactly why not (spec/rebuild.md).
//!
//! An operator moves production traffic on the word of a gate, so everything here fails closed: what is missing,
//! unknown, stale or unreadable is a finding, never "fine". [`judge`] is the whole core: request, inputs and time in,
//! verdict out. Rules are small functions that carry the id of the specification, one file per phase family in
//! `rules/`; the table of all of them is `docs/rebuild-rules.md`.

pub mod api;
#[cfg(feature = "aws-rebuild")]
pub mod aws;
pub mod codes;
mod decide;
mod inputs;
mod json;
mod live;
mod names;
mod phase;
mod plan;
pub mod report;
mod rules;
pub mod run;
mod skeleton;
mod store;
mod verdict;
mod yaml;

pub use decide::{BadInput, Files, Input, Inputs, Judgement, Request, judge, sha256_hex};
pub use phase::{ALL as PHASES, Phase};
pub use plan::Action;
pub use skeleton::{Skeleton, skeleton};
pub use verdict::{Finding, InputRef, LeftBehind, MustKeep, Verdict, Word};

/// The inputs that a phase can't do without (IN-6), by their names under `inputs`.
pub fn needed_inputs(phase: Phase, use_: Option<&str>, rollback: bool) -> &'static [&'static str] {
    use Phase::*;
    match (phase, use_) {
        (VerifyHandoff, _) => &["plan", "state_m5a"],
        (
            Prepare | PrepareAlb | Start | Cutover | Switch | Steady | TaskdefOn | WorkerOff | CertRequest,
            _,
        ) => &["plan"],
        (Import, Some("2b")) => &["plan", "cert_requested"],
        (Import, _) => &["plan"],
        (CertRequested, _) => &["state_m5a", "state_rebuild"],
        (Rebuild, _) => &["plan", "state_rebuild", "cert_requested"],
        (Created | Ready | Shift | TaskdefOnLive | TaskdefOffLive | LiveRevision, _) => &["state_rebuild"],
        (DnsBatch, _) => &["dns_batch"],
        (WorkerOn, _) if !rollback => &["plan", "taskdef_on"],
        (WorkerOn, _) => &["plan"],
        (WorkerOnLive, _) if !rollback => &["state_rebuild", "taskdef_on"],
        (WorkerOnLive, _) => &["state_rebuild"],
        (TaskdefOff, _) => &["plan", "live_revision"],
        (RollbackRebuild, _) => &["plan", "state_rebuild"],
        (RolledBack, _) => &["state_rebuild"],
        (PreCreate | Converted | WorkerOffLive | State | Retire, _) => &[],
    }
}

/// The live reads of a phase: call, identifying input, and when it is needed (2.11 row 26).
pub fn needed_reads(phase: Phase, use_: Option<&str>) -> Vec<(&'static str, &'static str, &'static str)> {
    use Phase::*;
    const CERTIFICATE: (&str, &str, &str) = ("acm:DescribeCertificate", "CertificateArn", "");
    const RECORDS: (&str, &str, &str) = ("route53:ListResourceRecordSets", "HostedZoneId", "");
    const SERVICE: (&str, &str, &str) = ("apprunner:DescribeService", "ServiceArn", "");
    const OPERATIONS: (&str, &str, &str) = ("apprunner:ListOperations", "ServiceArn", "");
    const DOMAINS: (&str, &str, &str) = ("apprunner:DescribeCustomDomains", "ServiceArn", "");
    const ECS: (&str, &str, &str) = ("ecs:DescribeServices", "cluster, services", "");
    const REVISION: (&str, &str, &str) = (
        "ecs:DescribeTaskDefinition",
        "taskDefinition",
        "of the revisions compared",
    );
    const LISTENERS: (&str, &str, &str) = ("elasticloadbalancing:DescribeListeners", "LoadBalancerArn", "");
    const HEALTH: (&str, &str, &str) = ("elasticloadbalancing:DescribeTargetHealth", "TargetGroupArn", "");
    let mut out = match (phase, use_) {
        (VerifyHandoff, _) => vec![
            ("cloudformation:DescribeStacks", "-", "the list of all stacks"),
            SERVICE,
            (
                "apprunner:ListOperations",
                "ServiceArn",
                "after a synchronized deployment",
            ),
            (
                "apprunner:DescribeCustomDomains",
                "ServiceArn",
                "without a custom domain",
            ),
        ],
        (PreCreate, _) => vec![
            ("acm:ListCertificates", "-", "every status"),
            (
                "acm:DescribeCertificate",
                "CertificateArn",
                "of each that covers the name",
            ),
            ("route53:ListHostedZonesByName", "DNSName", ""),
            ("route53:GetHostedZone", "Id", ""),
            RECORDS,
            (
                "apprunner:DescribeCustomDomains",
                "ServiceArn",
                "with a custom domain",
            ),
            ("dns NS", "name of the zone", "the parent's answer"),
            (
                "dns CAA",
                "names above the zone",
                "unless the zone has CAA records",
            ),
        ],
        (CertRequested, _) | (Rebuild, _) => vec![CERTIFICATE, RECORDS],
        (Created, _) => vec![
            ECS,
            REVISION,
            (
                "application-autoscaling:DescribeScalableTargets",
                "ServiceNamespace",
                "",
            ),
            CERTIFICATE,
            LISTENERS,
            (
                "elasticloadbalancing:DescribeListenerCertificates",
                "ListenerArn",
                "unless the certificate is the default",
            ),
            ("ec2:DescribeRouteTables", "-", ""),
            ("ec2:DescribeNatGateways", "-", "with a route to a NAT"),
            (
                "ec2:DescribeInternetGateways",
                "-",
                "with a route to one and a public IP",
            ),
            ("ec2:DescribeVpcEndpoints", "-", "with neither"),
            (
                "ec2:DescribeVpcAttribute",
                "VpcId",
                "enableDnsSupport and enableDnsHostnames",
            ),
            ("ec2:DescribeSecurityGroupRules", "-", ""),
            ("iam:SimulatePrincipalPolicy", "PolicySourceArn", "of both roles"),
            (
                "elasticloadbalancing:DescribeLoadBalancers",
                "LoadBalancerArns",
                "without a custom domain",
            ),
            (
                "route53:ListResourceRecordSets",
                "HostedZoneId",
                "without a custom domain",
            ),
        ],
        (Ready, _) => vec![
            ECS,
            REVISION,
            HEALTH,
            LISTENERS,
            (
                "elasticloadbalancing:DescribeRules",
                "ListenerArn",
                "where rules route by host",
            ),
            ("tls", "sni", "through the new name without a custom domain"),
            ("http", "the safe path", ""),
            (
                "elasticloadbalancing:DescribeLoadBalancers",
                "LoadBalancerArns",
                "without a custom domain",
            ),
            (
                "route53:ListResourceRecordSets",
                "HostedZoneId",
                "without a custom domain",
            ),
        ],
        (Import, Some("7a" | "7a-revert")) => vec![
            RECORDS,
            ("route53:GetChange", "Id", "where the change id is known"),
        ],
        (DnsBatch | Converted | Cutover, _) => vec![RECORDS],
        (Shift, _) => vec![
            RECORDS,
            HEALTH,
            ("cloudwatch:DescribeAlarms", "AlarmNames", "both 5xx alarms"),
        ],
        (TaskdefOnLive | TaskdefOffLive | LiveRevision, _) => vec![ECS, REVISION],
        (WorkerOffLive, _) => vec![OPERATIONS, SERVICE],
        (WorkerOn, _) => vec![
            ECS,
            (
                "ecs:DescribeTaskDefinition",
                "taskDefinition",
                "of the target, with rollback",
            ),
        ],
        (WorkerOnLive, _) => vec![ECS],
        (TaskdefOff, _) => vec![
            ECS,
            (
                "ecs:DescribeTaskDefinition",
                "taskDefinition",
                "of the live revision",
            ),
        ],
        (RolledBack, _) => vec![
            SERVICE,
            (
                "ecs:DescribeServices",
                "cluster, services",
                "once the service exists",
            ),
            (
                "ecs:DescribeTaskDefinition",
                "taskDefinition",
                "of the live revision",
            ),
            (
                "route53:ListResourceRecordSets",
                "HostedZoneId",
                "with a custom domain",
            ),
            ("cloudwatch:GetMetricData", "-", "without a custom domain"),
        ],
        (RollbackRebuild, _) => vec![
            (
                "acm:DescribeCertificate",
                "CertificateArn",
                "while the certificate is in the state",
            ),
            (
                "route53:ListResourceRecordSets",
                "HostedZoneId",
                "for the report, when a record is forgotten",
            ),
        ],
        _ => Vec::new(),
    };
    if phase.takes_plan() || phase == DnsBatch {
        let when = "when a record is deleted, or its name, type, zone or value changes (N1)";
        out.extend([
            ("acm:ListCertificates", "-", when),
            ("acm:DescribeCertificate", "CertificateArn", when),
        ]);
        out.push((DOMAINS.0, DOMAINS.1, when));
    }
    out
}

#[cfg(test)]
mod tests;
