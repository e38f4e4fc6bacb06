//! The steps after the instance is up: certificate, DNS, starting the saga (spec/domains.md 2.10, 2.11). None
//! of them ever touches the instance.

use super::dns::{self, Answer, StackStep};
use super::model::{Certificate, DnsRecord, Millis, Product, ProvisionError, Registry};
use super::names::{Domain, Origin, certificate_token};
use super::run::{Supervisor, World};
use super::store;
use crate::error::CallError;
use crate::store::WriteError;
use serde_json::Value;

/// Domains whose records are looked up again in one pass of the sweep.
pub const VERIFY_PER_PASS: usize = 5;

/// A certificate as ACM shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateSeen {
    /// ACM's word.
    pub status: String,
    /// Why it failed.
    pub reason: Option<String>,
    /// Name, type and value of the records that prove control; a name whose record is not there yet is left
    /// out.
    pub validation: Vec<(String, String, String)>,
    /// Has every name its record?
    pub complete: bool,
}

/// What starting an execution came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Started {
    /// It runs; its ARN.
    Now(String),
    /// One of that name has been there: its ARN.
    Before(String),
}

/// What the later steps ask of AWS and of public DNS. Every method may be repeated.
#[expect(
    async_fn_in_trait,
    reason = "used with generics on one thread; no Send bound is wanted"
)]
pub trait Later {
    /// Starts an execution of the saga.
    async fn start(&self, name: &str, input: &Value) -> Result<Started, CallError>;
    /// Asks for a certificate; the token makes a repetition within an hour the same one.
    async fn request_certificate(&self, name: &str, token: &str) -> Result<String, CallError>;
    /// What became of it.
    async fn certificate(&self, arn: &str) -> Result<CertificateSeen, CallError>;
    /// A public DNS query. A query that fails is unknown, never missing. For TXT, every string found.
    async fn lookup(&self, kind: &str, name: &str) -> Answer;
    /// Name of the hosted zone.
    async fn zone_name(&self, zone: &str) -> Result<String, CallError>;
    /// Status of a stack, none if there is no such stack.
    async fn stack(&self, name: &str) -> Result<Option<String>, CallError>;
    /// Makes a stack.
    async fn create_stack(&self, name: &str, template: &Value, token: &str) -> Result<(), CallError>;
    /// Deletes a stack that never came to be.
    async fn delete_stack(&self, name: &str, token: &str) -> Result<(), CallError>;
}

/// Where a certificate stands, for the workflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CertificateStep {
    /// Usable.
    Issued,
    /// Waiting, e.g. for the customer's DNS.
    Pending,
    /// It will not come (spec/domains.md 2.11).
    Failed,
}

/// Reads ACM's word; an unknown one is waited for.
pub fn certificate_step(status: &str) -> CertificateStep {
    match status {
        "ISSUED" => CertificateStep::Issued,
        "FAILED" | "VALIDATION_TIMED_OUT" | "REVOKED" | "EXPIRED" | "INACTIVE" => CertificateStep::Failed,
        _ => CertificateStep::Pending,
    }
}

/// Asks for the certificate `<prefix>.<domain>`.
///
/// # Errors
/// ACM did not take the request.
pub async fn request_certificate<W: Later>(
    w: &W,
    prefix: &str,
    domain: &Domain,
) -> Result<Certificate, ProvisionError> {
    let name = format!("{prefix}.{domain}");
    let arn = w.request_certificate(&name, &certificate_token(&name)).await?;
    Ok(Certificate {
        arn,
        name,
        status: "PENDING_VALIDATION".into(),
        validation: Vec::new(),
    })
}

/// Looks at a certificate, and at the records that prove control of its name.
///
/// # Errors
/// ACM did not answer, or the certificate will not come.
pub async fn poll_certificate<W: Later>(
    w: &W,
    known: &Certificate,
) -> Result<(Certificate, CertificateStep), ProvisionError> {
    let seen = w.certificate(&known.arn).await?;
    let validation: Vec<DnsRecord> = seen
        .validation
        .into_iter()
        .map(|(name, kind, value)| {
            let old = known.validation.iter().find(|r| r.name == name && r.kind == kind);
            DnsRecord {
                found: old.and_then(|o| o.found.clone()),
                ok: seen.status == "ISSUED",
                foreign: false,
                kind,
                name,
                value,
            }
        })
        .collect();
    let step = certificate_step(&seen.status);
    if step == CertificateStep::Failed {
        return Err(ProvisionError::Certificate(format!(
            "ACM ended the certificate for {} with {}{}. The instance is kept; set the validation records and create the domain again.",
            known.name,
            seen.status,
            seen.reason.map(|r| format!(" ({r})")).unwrap_or_default()
        )));
    }
    let next = Certificate {
        status: seen.status,
        validation: if validation.is_empty() {
            known.validation.clone()
        } else {
            validation
        },
        ..known.clone()
    };
    Ok((next, step))
}

/// Looks all records up. Also answers at which names and types nothing at all is there.
pub async fn verified<W: Later>(w: &W, records: &[DnsRecord]) -> (Vec<DnsRecord>, Vec<(String, String)>) {
    let mut out = Vec::with_capacity(records.len());
    let mut free = Vec::new();
    for r in records {
        let answer = w.lookup(&r.kind, &r.name).await;
        if answer == Answer::Found(Vec::new()) {
            free.push((r.kind.clone(), r.name.clone()));
        }
        out.push(dns::judged(r, answer));
    }
    (out, free)
}

/// Publishes the records that nobody has set, as one stack, where a zone is configured that may hold them.
///
/// # Errors
/// [`ProvisionError::InProgress`] while the stack is being made; ask again.
pub async fn publish<W: Later>(
    w: &W,
    zone: Option<&str>,
    domain: &Domain,
    name: &str,
    records: &[DnsRecord],
) -> Result<(Vec<DnsRecord>, bool), ProvisionError> {
    let (records, free) = verified(w, records).await;
    let Some(zone) = zone else {
        return Ok((records, false));
    };
    if !dns::zone_holds(&w.zone_name(zone).await?, domain) {
        return Ok((records, false));
    }
    let wait =
        |what: &str| ProvisionError::InProgress(format!("The stack {name} with the DNS records is {what}."));
    match dns::stack_step(w.stack(name).await?.as_deref()) {
        StackStep::Done => Ok((records, true)),
        StackStep::Wait => Err(wait("being made")),
        StackStep::Stuck => Err(ProvisionError::Dns(format!(
            "The stack {name} with the DNS records needs a person: look at it in CloudFormation. The instance is kept."
        ))),
        StackStep::Delete => {
            w.delete_stack(name, &store::token(&["delete", name])).await?;
            Err(wait("being cleared after a failed creation"))
        }
        StackStep::Create => match dns::template(zone, &records, &free) {
            None => Ok((records, false)),
            Some(template) => {
                let token = store::token(&["create", name, &template.to_string()]);
                w.create_stack(name, &template, &token).await?;
                Err(wait("being made"))
            }
        },
    }
}

impl<W: World + Later> Supervisor<'_, W> {
    /// Looks the domain's records up again and stores what was found.
    ///
    /// # Errors
    /// The table could not be read or written.
    pub async fn verify_dns(&self, domain: &Domain) -> Result<Option<Product>, ProvisionError> {
        let (row, product) = self.both(domain).await?;
        let (Some(row), Some(product)) = (row, product) else {
            return Ok(None);
        };
        let (records, _) = verified(self.world(), &records_of(&row, Some(&product))).await;
        self.keep_records(&product, records).await.map(Some)
    }

    /// Stores what was found.
    ///
    /// # Errors
    /// The table could not be written.
    pub async fn keep_records(
        &self,
        product: &Product,
        records: Vec<DnsRecord>,
    ) -> Result<Product, ProvisionError> {
        let now = self.now();
        let next = Product {
            dns_records: records,
            dns_checked_at: Some(now),
            updated_at: now,
            ..product.clone()
        };
        let token = store::token(&["dns", product.domain.as_str(), &now.to_string()]);
        match self
            .world()
            .write(&[store::change_product(product, &next)], &token)
            .await
        {
            Ok(()) => Ok(next),
            // Retired, or inserted anew, meanwhile: what was found is for nobody.
            Err(WriteError::Conflict(_)) => Ok(product.clone()),
            Err(WriteError::Call(e)) => Err(e.into()),
        }
    }
}

/// The records of a domain: those stored, else those it will need.
pub fn records_of(row: &Registry, product: Option<&Product>) -> Vec<DnsRecord> {
    match product {
        Some(p) if !p.dns_records.is_empty() => p.dns_records.clone(),
        _ => dns::wanted(&row.domain, &row.origin),
    }
}

/// The product row of an insert.
pub fn product(
    domain: &Domain,
    origin: &Origin,
    generation: super::model::Generation,
    execution: &str,
    certificate: Option<Certificate>,
    now: Millis,
) -> Product {
    Product {
        domain: domain.clone(),
        generation,
        execution: execution.to_owned(),
        certificate,
        dns_records: dns::wanted(domain, origin),
        dns_checked_at: None,
        created_at: now,
        updated_at: now,
    }
}
