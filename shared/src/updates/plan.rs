//! What a change set would do: counts, replacements, and what would lose data (spec/updates.md 4.3).

use super::model::{PlannedChange, Summary};

/// Types whose resources hold data. The list follows cfn-lint's StatefulResources (spec/updates.md 4.3 item
/// 26), plus the nested stack, which may hold any of them.
const DATA_BEARING: [&str; 32] = [
    "AWS::Backup::BackupVault",
    "AWS::CloudFormation::Stack",
    "AWS::Cognito::UserPool",
    "AWS::DocDB::DBCluster",
    "AWS::DocDB::DBInstance",
    "AWS::DynamoDB::GlobalTable",
    "AWS::DynamoDB::Table",
    "AWS::EC2::Volume",
    "AWS::EFS::FileSystem",
    "AWS::EMR::Cluster",
    "AWS::ElastiCache::CacheCluster",
    "AWS::ElastiCache::ReplicationGroup",
    "AWS::Elasticsearch::Domain",
    "AWS::FSx::FileSystem",
    "AWS::KMS::Key",
    "AWS::Kinesis::Stream",
    "AWS::Logs::LogGroup",
    "AWS::MemoryDB::Cluster",
    "AWS::MSK::Cluster",
    "AWS::Neptune::DBCluster",
    "AWS::Neptune::DBInstance",
    "AWS::OpenSearchServerless::Collection",
    "AWS::OpenSearchService::Domain",
    "AWS::QLDB::Ledger",
    "AWS::RDS::DBCluster",
    "AWS::RDS::DBInstance",
    "AWS::Redshift::Cluster",
    "AWS::S3::Bucket",
    "AWS::SDB::Domain",
    "AWS::SQS::Queue",
    "AWS::SecretsManager::Secret",
    "AWS::Timestream::Table",
];

/// Does a resource of this type hold data?
pub fn is_data_bearing(kind: &str) -> bool {
    DATA_BEARING.contains(&kind)
}

/// Will or may it be replaced? `Conditional` means that CloudFormation can not tell before it runs, so it
/// counts as possible (item 24).
pub fn may_replace(c: &PlannedChange) -> bool {
    matches!(c.replacement.as_deref(), Some("True" | "Conditional"))
        || matches!(
            c.policy_action.as_deref(),
            Some("ReplaceAndDelete" | "ReplaceAndRetain" | "ReplaceAndSnapshot")
        )
}

/// Would its data be lost? Removed or (possibly) replaced, and the policy deletes (items 25, 26). Without a
/// policy word CloudFormation deletes, so that counts as well.
pub fn loses_data(c: &PlannedChange) -> bool {
    let goes = c.action == "Remove" || may_replace(c);
    let deletes = match c.policy_action.as_deref() {
        None => true,
        Some(p) => matches!(p, "Delete" | "ReplaceAndDelete"),
    };
    is_data_bearing(&c.kind) && goes && deletes
}

/// Counts a whole set of changes.
pub fn summarise(changes: &[PlannedChange]) -> Summary {
    let count = |a: &str| changes.iter().filter(|c| c.action == a).count() as u64;
    let ids = |f: fn(&PlannedChange) -> bool| -> Vec<String> {
        let mut v: Vec<String> = changes
            .iter()
            .filter(|c| f(c))
            .map(|c| c.logical_id.clone())
            .collect();
        v.sort();
        v.dedup();
        v
    };
    Summary {
        add: count("Add"),
        modify: count("Modify"),
        remove: count("Remove"),
        import: count("Import"),
        dynamic: count("Dynamic"),
        replacements: ids(may_replace),
        data_loss: ids(loses_data),
    }
}

/// The summary in words.
pub fn in_words(s: &Summary) -> String {
    if s.total() == 0 {
        return "0 resources, outputs only".to_owned();
    }
    let parts: Vec<String> = [
        (s.add, "added"),
        (s.modify, "modified"),
        (s.remove, "removed"),
        (s.import, "imported"),
        (s.dynamic, "not known before it runs"),
    ]
    .iter()
    .filter(|(n, _)| *n > 0)
    .map(|(n, w)| format!("{n} {w}"))
    .collect();
    let mut text = parts.join(", ");
    if !s.replacements.is_empty() {
        text = format!("{text}; may replace {}", s.replacements.join(", "));
    }
    if !s.data_loss.is_empty() {
        text = format!("{text}; DELETES DATA of {}", s.data_loss.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(action: &str, kind: &str, replacement: Option<&str>, policy: Option<&str>) -> PlannedChange {
        PlannedChange {
            logical_id: "R".into(),
            kind: kind.into(),
            action: action.into(),
            replacement: replacement.map(Into::into),
            policy_action: policy.map(Into::into),
            details: vec![],
        }
    }

    #[test]
    fn data_is_lost_only_when_the_policy_deletes_a_data_bearing_resource() {
        let t = "AWS::DynamoDB::Table";
        for (c, lost) in [
            (change("Remove", t, None, Some("Delete")), true),
            (change("Remove", t, None, Some("Retain")), false),
            (change("Remove", t, None, None), true),
            (change("Modify", t, Some("True"), Some("ReplaceAndDelete")), true),
            (
                change("Modify", t, Some("Conditional"), Some("ReplaceAndSnapshot")),
                false,
            ),
            (change("Modify", t, Some("Conditional"), None), true),
            (change("Modify", t, Some("False"), None), false),
            (
                change("Remove", "AWS::Lambda::Function", None, Some("Delete")),
                false,
            ),
        ] {
            assert_eq!(loses_data(&c), lost, "{c:?}");
        }
    }

    #[test]
    fn the_words_say_outputs_only_and_shout_about_data() {
        assert_eq!(in_words(&summarise(&[])), "0 resources, outputs only");
        let s = summarise(&[
            change("Add", "X", None, None),
            change("Remove", "AWS::S3::Bucket", None, Some("Delete")),
        ]);
        assert_eq!(in_words(&s), "1 added, 1 removed; DELETES DATA of R");
    }
}
