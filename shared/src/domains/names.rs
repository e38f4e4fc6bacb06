//! Names: the customer's domain, and what is derived from it (spec/domains.md 1.4, 1.5, 1.7).
//!
//! Two spellings of a domain give the same [`Domain`]; two domains never give the same plain [`Slug`] by
//! folding; and a slug never claims to be punycode.

use base64::Engine;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;

/// Longest slug, so that slug + suffix fits ACM's 64 octets for a certificate's main name (F4).
pub const SLUG_MAX: usize = 40;
/// Longest origin suffix: 40 + 24 = 64.
pub const SUFFIX_MAX: usize = 24;
/// Longest main name of an ACM certificate, in octets (ACM API reference, RequestCertificate).
pub const CERTIFICATE_NAME_MAX: usize = 64;
/// Longest domain name in its text form, in octets (RFC 1035 2.3.4).
const DOMAIN_MAX: usize = 253;

/// Top-level names that AT Protocol refuses for registration (atproto handle specification). `.test` is
/// added unless names for tests are allowed.
const REFUSED_TLDS: [&str; 8] = [
    "local",
    "arpa",
    "invalid",
    "localhost",
    "internal",
    "example",
    "alt",
    "onion",
];

/// Slugs that are never used plain (spec/domains.md 1.5). A plain slug has a hyphen, so only a few can be
/// hit; the whole list is kept all the same.
const RESERVED: [&str; 19] = [
    "www",
    "api",
    "admin",
    "mail",
    "smtp",
    "imap",
    "pop",
    "mx",
    "ns",
    "ns1",
    "ns2",
    "autoconfig",
    "autodiscover",
    "mta-sts",
    "ask",
    "health",
    "status",
    "caddy",
    "zds",
];

/// A hosted domain in its one ASCII spelling: lower case, no trailing dot, IDN as punycode.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Domain(String);

/// Why a name can not be hosted: every fault, each a plain sentence.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{}", .0.join(" "))]
pub struct BadDomain(pub Vec<String>);

/// What this cell refuses beside what nobody may host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NameRules {
    /// The cell's own zone, without a leading dot.
    pub zone: Option<String>,
    /// May names under `.test` be hosted? Only in tests and in the local stack.
    pub allow_test: bool,
    /// Host prefix that needs an ACM certificate (`CERTIFICATE_FOR`).
    pub certificate_for: Option<String>,
}

impl Domain {
    /// Normalises a name: trims ASCII white space, removes one trailing dot, maps to ASCII by UTS-46 with the
    /// STD3 deny list, hyphen and length checks, then applies the rules of spec/domains.md 1.4.
    ///
    /// # Errors
    /// Every rule that the name breaks.
    pub fn parse(input: &str, rules: &NameRules) -> Result<Self, BadDomain> {
        let trimmed = input.trim_matches(|c: char| c.is_ascii_whitespace());
        let name = trimmed.strip_suffix('.').unwrap_or(trimmed);
        if name.is_empty() {
            return Err(BadDomain(vec![
                "The domain is empty; give a name such as example.com.".into(),
            ]));
        }
        let ascii = idna::uts46::Uts46::new()
            .to_ascii(
                name.as_bytes(),
                idna::AsciiDenyList::STD3,
                idna::uts46::Hyphens::Check,
                idna::uts46::DnsLength::Verify,
            )
            .map_err(|_| BadDomain(vec![not_a_name(name)]))?
            .into_owned();
        let faults = faults(&ascii, rules);
        if faults.is_empty() {
            Ok(Self(ascii))
        } else {
            Err(BadDomain(faults))
        }
    }

    /// The ASCII text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Names under which this domain gives out handles, each with its leading dot.
    pub fn handle_domains(&self) -> Vec<String> {
        vec![format!(".{}", self.0)]
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// At most 80 characters of what was given, escaped, for an error text.
fn shown(name: &str) -> String {
    let cut: String = name.chars().take(80).collect();
    let dots = if cut.len() < name.len() { "…" } else { "" };
    format!("{}{dots}", cut.escape_debug())
}

fn not_a_name(name: &str) -> String {
    format!(
        "“{}” is not a domain name: labels of 1 to 63 letters, digits and inner hyphens, separated by single dots, at \
         most {DOMAIN_MAX} in all, without scheme, port, path, user, wildcard or underscore.",
        shown(name)
    )
}

fn faults(ascii: &str, rules: &NameRules) -> Vec<String> {
    let mut out = Vec::new();
    if ascii.len() > DOMAIN_MAX {
        out.push(format!("The name has more than {DOMAIN_MAX} octets."));
    }
    let Some((_, tld)) = ascii.rsplit_once('.') else {
        out.push(format!(
            "“{}” has one label only; a hosted domain has at least two.",
            shown(ascii)
        ));
        return out;
    };
    // Also refuses addresses: the last label of an IPv4 address begins with a digit (atproto handle rule).
    if !tld.starts_with(|c: char| c.is_ascii_lowercase()) {
        out.push(format!(
            "“{}” does not end in a top-level domain: the last label begins with a digit.",
            shown(ascii)
        ));
        return out;
    }
    if REFUSED_TLDS.contains(&tld) || (tld == "test" && !rules.allow_test) {
        out.push(format!("Names under .{tld} are reserved and can not be hosted."));
    } else if is_public_suffix(ascii) {
        out.push(format!(
            "“{}” is a public suffix: it belongs to a registry, not to a customer.",
            shown(ascii)
        ));
    }
    if let Some(zone) = &rules.zone
        && (ascii == zone || ascii.ends_with(&format!(".{zone}")))
    {
        out.push(format!(
            "“{}” lies in {zone}, the zone of the hosting cell itself.",
            shown(ascii)
        ));
    }
    if let Some(prefix) = &rules.certificate_for {
        let name = format!("{prefix}.{ascii}");
        if name.len() > CERTIFICATE_NAME_MAX {
            out.push(format!(
                "The certificate name {prefix}.<domain> would have {} octets; ACM takes {CERTIFICATE_NAME_MAX} at most.",
                name.len()
            ));
        }
    }
    out
}

/// Only the ICANN section counts: the owner of a private suffix may host it (spec/domains.md 1.4).
fn is_public_suffix(ascii: &str) -> bool {
    psl::suffix(ascii.as_bytes())
        .is_some_and(|s| s.typ() == Some(psl::Type::Icann) && s.as_bytes() == ascii.as_bytes())
}

/// DNS label that names the unit, the env file, the map file and the first label of the origin.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Slug(String);

impl Slug {
    /// The slug of a domain (spec/domains.md 1.5): the labels joined with hyphens where that is unambiguous,
    /// else shortened and with a hash. Depends on nothing but the domain.
    pub fn of(domain: &Domain) -> Self {
        let plain = domain.0.replace('.', "-");
        let ambiguous = domain.0.contains('-');
        if !ambiguous && plain.len() <= SLUG_MAX && !RESERVED.contains(&plain.as_str()) {
            return Self(plain);
        }
        let mut folded = String::with_capacity(plain.len());
        for c in plain.chars() {
            if c != '-' || !folded.ends_with('-') {
                folded.push(c);
            }
        }
        let head: String = folded.chars().take(31).collect();
        let digest = Sha256::digest(domain.0.as_bytes());
        Self(format!("{}-{}", head.trim_end_matches('-'), base32(&digest, 8)))
    }

    /// A slug from stored or foreign text.
    pub fn parse(text: &str) -> Option<Self> {
        is_slug(text).then(|| Self(text.to_owned()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Slug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// `^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`, on the whole string (spec/domains.md 1.13).
pub(super) fn is_slug(s: &str) -> bool {
    (1..=SLUG_MAX).contains(&s.len()) && is_ldh(s, false)
}

/// Lower-case letters, digits, hyphens (and dots), beginning and ending with a letter or digit.
pub(super) fn is_ldh(s: &str, dots: bool) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let inner = |b: u8| plain(b) || b == b'-' || (dots && b == b'.');
    s.bytes().all(inner) && s.bytes().next().is_some_and(plain) && s.bytes().last().is_some_and(plain)
}

/// The first `n` characters of lower-case RFC 4648 base32; `bytes` must hold at least as many bits.
fn base32(bytes: &[u8], n: usize) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let mut out = String::with_capacity(n);
    let (mut buffer, mut bits) = (0u32, 0u32);
    for b in bytes {
        if out.len() == n {
            break;
        }
        buffer = (buffer << 8) | u32::from(*b);
        bits += 8;
        while bits >= 5 && out.len() < n {
            bits -= 5;
            let at = ((buffer >> bits) & 31) as usize;
            out.push(ALPHABET.get(at).copied().map_or('a', char::from));
        }
        buffer &= (1 << bits) - 1;
    }
    out
}

/// What stands behind the slug in every origin of a cell, with its leading dot.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OriginSuffix(String);

impl OriginSuffix {
    /// Reads `ORIGIN_SUFFIX`; empty means lookup only.
    ///
    /// # Errors
    /// What is wrong, with the value that would be right where one can be told (spec/domains.md 1.7).
    pub fn parse(text: &str) -> Result<Option<Self>, String> {
        if text.is_empty() {
            return Ok(None);
        }
        let body = text.trim_matches('.').to_ascii_lowercase();
        let labels: Vec<&str> = body.split('.').collect();
        let label_ok = |l: &&str| (1..=63).contains(&l.len()) && is_ldh(l, false);
        let fixed = format!(".{body}");
        let form = "one leading dot, at least two labels of lower-case letters, digits and inner hyphens, no trailing dot";
        if !labels.iter().all(label_ok) || labels.len() < 2 {
            return Err(format!("it must be {form}, e.g. .pds1.eu.example.net"));
        }
        if fixed.len() > SUFFIX_MAX {
            return Err(format!(
                "it has {} octets, and {SUFFIX_MAX} is the most, because slug and suffix together must fit ACM's limit of \
                 {CERTIFICATE_NAME_MAX}: choose a shorter zone, e.g. .{}",
                fixed.len(),
                shorter(&labels)
            ));
        }
        if fixed != text {
            return Err(format!("it must be {form}: use {fixed}"));
        }
        Ok(Some(Self(fixed)))
    }

    /// The text, leading dot included.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The zone: the suffix without its dot.
    pub fn zone(&self) -> &str {
        self.0.trim_start_matches('.')
    }
}

/// The longest tail of the labels that fits.
fn shorter(labels: &[&str]) -> String {
    (1..labels.len().saturating_sub(1))
        .filter_map(|n| labels.get(n..).map(|l| l.join(".")))
        .find(|s| s.len() < SUFFIX_MAX)
        .unwrap_or_else(|| "pds.example.net".into())
}

/// Public host name of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Origin(String);

impl Origin {
    /// Slug + suffix.
    pub fn of(slug: &Slug, suffix: &OriginSuffix) -> Self {
        Self(format!("{}{}", slug.0, suffix.0))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// `did:web:` + origin; host-level only, as AT Protocol wants it (spec/domains.md 1.7).
    pub fn server_did(&self) -> String {
        format!("did:web:{}", self.0)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Name of a saga's execution: the same for the same idempotency key, at most 80 characters
/// (Step Functions API reference, StartExecution).
pub fn execution_name(slug: &Slug, idempotency_key: &str) -> String {
    let hex = crate::http::hex(&Sha256::digest(idempotency_key.as_bytes()));
    format!("{slug}-{}", hex.get(..32).unwrap_or(&hex))
}

/// Idempotency token of a certificate request: 32 hexadecimal digits of the name's digest
/// (ACM API reference, RequestCertificate).
pub fn certificate_token(name: &str) -> String {
    let hex = crate::http::hex(&Sha256::digest(name.as_bytes()));
    hex.get(..32).unwrap_or(&hex).to_owned()
}

/// Digest of what an instance was rendered from, to notice drift. Holds no secret.
pub(super) fn config_digest(parts: &[&str]) -> String {
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(Sha256::digest(parts.join("\n").as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rules() -> NameRules {
        NameRules {
            zone: Some("pds1.example.test".into()),
            allow_test: true,
            certificate_for: None,
        }
    }

    fn domain(s: &str) -> Domain {
        Domain::parse(s, &rules()).unwrap()
    }

    #[test]
    fn c08_suffix_needs_leading_dot() {
        let cases = [
            ("pds1.example.test", ".pds1.example.test"),
            ("..x.y", ".x.y"),
            (".x.y.", ".x.y"),
            (".X.y", ".x.y"),
            (".pds1-long.eu.example.net", ".eu.example.net"),
        ];
        assert_eq!(cases[4].0.len(), 25);
        for (given, fixed) in cases {
            let e = OriginSuffix::parse(given).unwrap_err();
            assert!(e.ends_with(fixed), "{given}: {e}");
        }
        for bad in [".", ".x", "x", ".x..y", ".-x.y", ".x_.y", ".x y.z", ".é.fr"] {
            OriginSuffix::parse(bad).unwrap_err();
        }
        assert_eq!(OriginSuffix::parse("").unwrap(), None);
        let ok = OriginSuffix::parse(".pds1.example.test").unwrap().unwrap();
        assert_eq!(
            (ok.as_str(), ok.zone()),
            (".pds1.example.test", "pds1.example.test")
        );
        assert_eq!(
            OriginSuffix::parse(".abc.defgh.ijkl.mnopq.rs")
                .unwrap()
                .unwrap()
                .as_str()
                .len(),
            24
        );
    }

    #[test]
    fn c09_normalises_domain_spellings() {
        for s in [
            "A.com",
            "a.com.",
            " a.com ",
            "a.COM",
            "\ta.com\r\n",
            "ａ.com",
            "a。com",
        ] {
            assert_eq!(domain(s).as_str(), "a.com", "{s:?}");
        }
        for (given, want) in [
            ("Example.COM", "example.com"),
            ("example.com.", "example.com"),
            ("faß.de", "xn--fa-hia.de"),
            ("BÜCHER.de", "xn--bcher-kva.de"),
            ("XN--BCHER-KVA.de", "xn--bcher-kva.de"),
            ("a.b。com", "a.b.com"),
            ("１２３.com", "123.com"),
            ("ⅷ.com", "viii.com"),
            ("аpple.com", "xn--pple-43d.com"),
            ("shop.co.uk", "shop.co.uk"),
            ("me.github.io", "me.github.io"),
            ("github.io", "github.io"),
        ] {
            assert_eq!(domain(given).as_str(), want, "{given}");
        }
    }

    #[test]
    fn c10_rejects_bad_domains() {
        let long = "a".repeat(64) + ".com";
        let longer = ["abcdefghi"; 26].join(".") + ".com";
        for bad in [
            "",
            " ",
            ".",
            "example.com..",
            "xn--a.de",
            "xn--.com",
            "a..b.com",
            ".a.com",
            "ex ample.com",
            "a_b.com",
            "example.com:80",
            "user@example.com",
            "*.example.com",
            "example.com/",
            "-a.com",
            "a-.com",
            "ab--cd.com",
            "127.0.0.1",
            "::1",
            "[::1]",
            "localhost",
            "com",
            "example.123",
            "a\u{200d}b.com",
            "a\u{202e}b.com",
            &long,
            &longer,
            "Bücher.Example",
            "a.local",
            "a.onion",
            "co.uk",
            "a.com\nb.com",
            "a.com;touch x",
            "$(id).com",
            "a'b.com",
            "a\0.com",
            "http://a.com",
            "pds1.example.test",
            "x.pds1.example.test",
        ] {
            let e = Domain::parse(bad, &rules()).unwrap_err().to_string();
            assert!(!e.chars().any(char::is_control), "{bad:?}: {e}");
        }
        let strict = NameRules::default();
        Domain::parse("a.test", &strict).unwrap_err();
        domain("a.test");
        domain("xpds1.example.test");
    }

    #[test]
    fn a_name_too_long_for_its_certificate_is_refused_before_anything_is_made() {
        let r = NameRules {
            certificate_for: Some("autoconfig".into()),
            ..NameRules::default()
        };
        let fits = format!("{}.com", "a".repeat(49));
        let over = format!("{}.com", "a".repeat(50));
        Domain::parse(&fits, &r).unwrap();
        assert!(
            Domain::parse(&over, &r)
                .unwrap_err()
                .to_string()
                .contains("65 octets")
        );
    }

    #[test]
    fn every_fault_of_a_name_is_listed() {
        let r = NameRules {
            zone: Some("x.example".into()),
            certificate_for: Some("a".repeat(60)),
            ..NameRules::default()
        };
        assert_eq!(Domain::parse("b.x.example", &r).unwrap_err().0.len(), 3);
    }

    #[test]
    fn c11_idn_gets_slug_without_double_hyphen() {
        let suffix = OriginSuffix::parse(".pds1.example.test").unwrap().unwrap();
        let slug = Slug::of(&domain("bücher.de"));
        assert!(
            !slug.as_str().contains("--") && slug.as_str().starts_with("xn-bcher-kva-de-"),
            "{slug}"
        );
        let origin = Origin::of(&slug, &suffix);
        assert!(origin.as_str().len() <= 64);
        assert_eq!(origin.server_did(), format!("did:web:{origin}"));
    }

    #[test]
    fn c12_hyphen_and_dot_do_not_collide() {
        let (a, b) = (Slug::of(&domain("a.b.com")), Slug::of(&domain("a-b.com")));
        assert_eq!(a.as_str(), "a-b-com");
        assert!(a != b && b.as_str().starts_with("a-b-com-"), "{a} {b}");
    }

    #[test]
    fn c13_long_domain_is_shortened_stably() {
        let d = domain(&format!("{}.com", "a".repeat(60)));
        assert_eq!(Slug::of(&d), Slug::of(&d));
        assert_eq!(Slug::of(&d).as_str().len(), 40);
        assert_ne!(
            Slug::of(&d),
            Slug::of(&domain(&format!("{}.net", "a".repeat(60))))
        );
    }

    #[test]
    fn c14_reserved_slug_is_not_used_plain() {
        // The one reserved word with a hyphen: a domain whose labels spell it.
        let slug = Slug::of(&Domain("mta.sts".into()));
        assert!(
            slug.as_str().starts_with("mta-sts-") && slug.as_str().len() == 16,
            "{slug}"
        );
        for word in RESERVED {
            assert_ne!(Slug::of(&Domain(word.replace('-', "."))).as_str(), word);
        }
    }

    #[test]
    fn homographs_have_different_slugs() {
        assert_ne!(Slug::of(&domain("аpple.com")), Slug::of(&domain("apple.com")));
    }

    #[test]
    fn base32_agrees_with_rfc_4648() {
        assert_eq!(base32(b"foobar", 8), "mzxw6ytb");
    }

    #[test]
    fn execution_names_fit_and_depend_on_slug_and_key() {
        let slug = Slug::of(&domain(&format!("{}.com", "a".repeat(60))));
        assert_eq!(execution_name(&slug, "k").len(), 73);
        assert_ne!(execution_name(&slug, "k"), execution_name(&slug, "l"));
        assert_eq!(certificate_token("a.com").len(), 32);
    }

    fn label() -> impl Strategy<Value = String> {
        "[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?"
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_has_one_spelling(s in "\\PC{0,40}|[a-zA-Z0-9.üß-]{1,30}") {
            if let Ok(d) = Domain::parse(&s, &rules()) {
                prop_assert_eq!(&domain(d.as_str()), &d);
                prop_assert_eq!(&domain(&format!(" {}. ", d.as_str().to_uppercase())), &d);
                let slug = Slug::of(&d);
                prop_assert!(is_slug(slug.as_str()) && !slug.as_str().contains("--"));
            }
        }

        #[test]
        fn distinct_names_have_distinct_plain_slugs(a in label(), b in label(), c in label()) {
            let (x, y) = (format!("{a}.{b}.{c}.com"), format!("{a}-{b}.{c}.com"));
            if let (Ok(x), Ok(y)) = (Domain::parse(&x, &rules()), Domain::parse(&y, &rules())) {
                prop_assert_ne!(Slug::of(&x), Slug::of(&y));
            }
        }
    }
}
