//! Public DNS questions and answers on the wire (RFC 1035 4), as far as MX, TXT and CNAME need them. Pure: the
//! adapter only carries the bytes. Nothing panics on what a stranger's server sends.

use super::dns::Answer;

/// Size of a UDP answer we take (RFC 6891 6.2.3).
const UDP_SIZE: u16 = 1232;
/// Most compression pointers followed in one name; a longer chain is an attack or a loop.
const JUMPS_MAX: usize = 16;

/// The number of a record type.
pub fn type_number(kind: &str) -> Option<u16> {
    match kind {
        "CNAME" => Some(5),
        "MX" => Some(15),
        "TXT" => Some(16),
        _ => None,
    }
}

/// A question for `name`, recursion desired, with EDNS. None if the name does not fit.
pub fn question(id: u16, name: &str, kind: &str) -> Option<Vec<u8>> {
    let number = type_number(kind)?;
    let mut out = Vec::with_capacity(64);
    out.extend(id.to_be_bytes());
    out.extend([0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 1]);
    for label in name.trim_end_matches('.').split('.') {
        let len = u8::try_from(label.len()).ok().filter(|l| (1..=63).contains(l))?;
        out.push(len);
        out.extend(label.bytes());
    }
    out.push(0);
    if out.len() > 12 + 255 {
        return None;
    }
    out.extend(number.to_be_bytes());
    out.extend([0, 1]);
    // OPT pseudo-record: root name, type 41, our size, no flags, no data.
    out.extend([0, 0, 41]);
    out.extend(UDP_SIZE.to_be_bytes());
    out.extend([0; 6]);
    Some(out)
}

/// What an answer says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read {
    /// It is the answer.
    Answer(Answer),
    /// It did not fit: ask again over TCP.
    Truncated,
    /// It is not an answer to this question.
    Foreign,
}

/// Reads an answer to [`question`].
pub fn answer(id: u16, kind: &str, bytes: &[u8]) -> Read {
    let Some((head, number)) = bytes.get(..12).zip(type_number(kind)) else {
        return Read::Foreign;
    };
    let word = |at: usize| u16_at(head, at).unwrap_or(0);
    let flags = word(2);
    if word(0) != id || flags & 0x8000 == 0 {
        return Read::Foreign;
    }
    if flags & 0x0200 != 0 {
        return Read::Truncated;
    }
    match flags & 0x000f {
        0 => {}
        // NXDOMAIN: an answer, and it says that there is nothing.
        3 => return Read::Answer(Answer::Found(Vec::new())),
        _ => return Read::Answer(Answer::Unknown),
    }
    let found = records(bytes, word(4), word(6), number);
    Read::Answer(found.map_or(Answer::Unknown, Answer::Found))
}

fn u16_at(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*b.get(at)?, *b.get(at + 1)?]))
}

fn records(b: &[u8], questions: u16, answers: u16, number: u16) -> Option<Vec<String>> {
    let mut at = 12;
    for _ in 0..questions {
        at = name_at(b, at)?.1 + 4;
    }
    let mut out = Vec::new();
    for _ in 0..answers {
        at = name_at(b, at)?.1;
        let kind = u16_at(b, at)?;
        let len = usize::from(u16_at(b, at + 8)?);
        let data = at + 10;
        let end = data + len;
        let body = b.get(data..end)?;
        if kind == number {
            out.push(match number {
                5 => name_at(b, data)?.0,
                15 => format!("{} {}", u16_at(b, data)?, name_at(b, data + 2)?.0),
                _ => strings(body)?,
            });
        }
        at = end;
    }
    Some(out)
}

/// The strings of a TXT record, joined (RFC 7208 3.3).
fn strings(body: &[u8]) -> Option<String> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < body.len() {
        let len = usize::from(*body.get(at)?);
        out.extend_from_slice(body.get(at + 1..at + 1 + len)?);
        at += 1 + len;
    }
    Some(String::from_utf8_lossy(&out).into_owned())
}

/// A name and the place after it.
fn name_at(b: &[u8], start: usize) -> Option<(String, usize)> {
    let (mut at, mut after, mut jumps) = (start, None, 0);
    let mut labels: Vec<String> = Vec::new();
    loop {
        let len = *b.get(at)?;
        match len {
            0 => return Some((labels.join("."), after.unwrap_or(at + 1))),
            1..=63 => {
                let from = at + 1;
                let label = b.get(from..from + usize::from(len))?;
                labels.push(String::from_utf8_lossy(label).into_owned());
                at = from + usize::from(len);
            }
            0xc0.. => {
                after = after.or(Some(at + 2));
                at = usize::from(u16_at(b, at)? & 0x3fff);
                jumps += 1;
            }
            _ => return None,
        }
        if jumps > JUMPS_MAX || labels.len() > 128 {
            return None;
        }
    }
}

/// Addresses of the resolvers in a `resolv.conf`.
pub fn resolvers(text: &str) -> Vec<String> {
    text.lines()
        .filter_map(|l| l.trim().strip_prefix("nameserver"))
        .map(str::trim)
        .filter_map(|a| a.split('%').next()?.parse::<std::net::IpAddr>().ok())
        .map(|ip| std::net::SocketAddr::new(ip, 53).to_string())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An answer with the question's name compressed, as servers send it.
    fn reply(question: &[u8], rcode: u8, records: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let mut out = question[..question.len() - 11].to_vec();
        out[2] = 0x81;
        out[3] = 0x80 | rcode;
        out[6..8].copy_from_slice(&u16::try_from(records.len()).unwrap().to_be_bytes());
        out[10..12].copy_from_slice(&[0, 0]);
        for (kind, data) in records {
            out.extend([0xc0, 12]);
            out.extend(kind.to_be_bytes());
            out.extend([0, 1, 0, 0, 0, 60]);
            out.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
            out.extend(data);
        }
        out
    }

    fn found(v: &[&str]) -> Read {
        Read::Answer(Answer::Found(v.iter().map(|s| (*s).to_owned()).collect()))
    }

    #[test]
    fn answers_are_read_with_compression_and_joined_strings() {
        let q = question(7, "a.com", "MX").unwrap();
        let mx = reply(
            &q,
            0,
            &[
                (15, [&[0, 10, 2], &b"mx"[..], &[0xc0, 12]].concat()),
                (16, vec![1, b'x']),
            ],
        );
        assert_eq!(answer(7, "MX", &mx), found(&["10 mx.a.com"]));
        let q = question(8, "a.com.", "TXT").unwrap();
        let txt = reply(&q, 0, &[(16, [&[7][..], b"v=spf1 ", &[2], b"mx"].concat())]);
        assert_eq!(answer(8, "TXT", &txt), found(&["v=spf1 mx"]));
        let q = question(9, "*.a.com", "CNAME").unwrap();
        let cname = reply(&q, 0, &[(5, [&[1][..], b"o", &[0]].concat())]);
        assert_eq!(answer(9, "CNAME", &cname), found(&["o"]));
    }

    #[test]
    fn nothing_there_and_no_answer_are_told_apart() {
        let q = question(7, "a.com", "MX").unwrap();
        assert_eq!(answer(7, "MX", &reply(&q, 3, &[])), found(&[]));
        assert_eq!(answer(7, "MX", &reply(&q, 0, &[])), found(&[]));
        assert_eq!(answer(7, "MX", &reply(&q, 2, &[])), Read::Answer(Answer::Unknown));
        assert_eq!(answer(8, "MX", &reply(&q, 0, &[])), Read::Foreign);
        assert_eq!(answer(7, "MX", &q), Read::Foreign);
        let mut cut = reply(&q, 0, &[]);
        cut[2] |= 2;
        assert_eq!(answer(7, "MX", &cut), Read::Truncated);
        // A name that points at itself.
        let loops = reply(&q, 0, &[(15, vec![0, 1, 0xc0, 0x25])]);
        assert_eq!(answer(7, "MX", &loops), Read::Answer(Answer::Unknown));
    }

    #[test]
    fn names_that_do_not_fit_are_not_asked() {
        assert_eq!(question(1, "a..b", "MX"), None);
        assert_eq!(question(1, &"a".repeat(64), "MX"), None);
        assert_eq!(question(1, &["a"; 200].join("."), "MX"), None);
        assert_eq!(question(1, "a.com", "A"), None);
    }

    #[test]
    fn resolvers_are_read_and_rubbish_passed_over() {
        let text = "# x\nnameserver 10.0.0.2\n nameserver fe80::1%eth0\nnameserver nonsense\nsearch a.b\n";
        assert_eq!(resolvers(text), ["10.0.0.2:53", "[fe80::1]:53"]);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..60) {
            for kind in ["MX", "TXT", "CNAME"] {
                let _ = answer(7, kind, &bytes);
                let q = question(7, "a.com", kind).unwrap();
                let mut r = reply(&q, 0, &[(type_number(kind).unwrap(), bytes.clone())]);
                r.truncate(r.len().saturating_sub(cut));
                let _ = answer(7, kind, &r);
            }
        }
    }
}
