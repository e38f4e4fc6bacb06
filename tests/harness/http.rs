//! As much of HTTP/1.1 as a test endpoint needs, on plain threads and sockets.
//!
//! Raw sockets on purpose: the faults worth testing are below HTTP (a connection dropped after the effect, an
//! answer cut in half, no answer at all), and a framework would have to be fought to produce them.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use crate::PATIENCE;

/// One request, read whole; a chunked body arrives joined.
#[derive(Debug, Clone, Default)]
pub struct Request {
    pub method: String,
    /// Path and query as sent.
    pub target: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    /// A request for [`send`].
    pub fn new(method: &str, target: &str, body: impl Into<Vec<u8>>) -> Self {
        Self {
            method: method.into(),
            target: target.into(),
            headers: Vec::new(),
            body: body.into(),
        }
    }

    /// Adds a header.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The first header of that name, whatever its case.
    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }

    /// The decoded path, without the query.
    pub fn path(&self) -> String {
        percent_decode(self.target.split('?').next().unwrap_or_default(), false)
    }

    /// Decoded query parameters in order.
    pub fn query(&self) -> Vec<(String, String)> {
        self.target
            .split_once('?')
            .map(|(_, query)| parse_form(query))
            .unwrap_or_default()
    }
}

/// One response.
#[derive(Debug, Clone, Default)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    pub fn new(status: u16, content_type: &str, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            headers: vec![("content-type".into(), content_type.into())],
            body: body.into(),
        }
    }

    /// Adds a header.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The first header of that name, whatever its case.
    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }
}

fn header<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers
        .iter()
        .find(|(key, _)| key.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.as_str())
}

/// What the server does with a request.
#[derive(Debug)]
pub enum Reply {
    Send(Response),
    /// Say nothing and wait until the caller gives up.
    Hang,
    /// Close the connection without a byte.
    Drop,
    /// Announce the whole body, send half of it, close.
    Cut(Response),
}

type Handler = dyn Fn(Request) -> Reply + Send + Sync;

/// A server on 127.0.0.1, port 0; it and every connection end when this is dropped.
pub struct Server {
    addr: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    stopping: AtomicBool,
    open: Mutex<BTreeMap<u64, TcpStream>>,
    handler: Box<Handler>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("addr", &self.addr)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Starts listening; `handler` runs on the thread of its connection and may block.
    pub fn start(handler: impl Fn(Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bind 127.0.0.1");
        let addr = listener.local_addr().expect("local address");
        let shared = Arc::new(Shared {
            stopping: AtomicBool::new(false),
            open: Mutex::new(BTreeMap::new()),
            handler: Box::new(handler),
        });
        let acceptor = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || accept(&listener, &shared))
        };
        Self {
            addr,
            shared,
            acceptor: Some(acceptor),
        }
    }

    /// `127.0.0.1:PORT`
    pub fn authority(&self) -> String {
        self.addr.to_string()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        // Wakes the acceptor, which then sees the flag.
        drop(TcpStream::connect(self.addr));
        if let Some(acceptor) = self.acceptor.take() {
            drop(acceptor.join());
        }
        for stream in self.shared.open.lock().unwrap().values() {
            drop(stream.shutdown(Shutdown::Both));
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for (id, stream) in (0_u64..).zip(listener.incoming()) {
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else { continue };
        let Ok(copy) = stream.try_clone() else { continue };
        shared.open.lock().unwrap().insert(id, copy);
        let closer = Closer {
            id,
            shared: Arc::clone(shared),
        };
        thread::spawn(move || {
            // An error here is the caller going away: nothing to report to anybody.
            drop(converse(stream, &closer.shared));
        });
    }
}

/// Closes the connection however its thread ends.
struct Closer {
    id: u64,
    shared: Arc<Shared>,
}

impl Drop for Closer {
    fn drop(&mut self) {
        if let Some(stream) = self.shared.open.lock().unwrap().remove(&self.id) {
            drop(stream.shutdown(Shutdown::Both));
        }
    }
}

fn converse(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    while let Some(request) = read_request(&mut stream, &mut buffer)? {
        let close = request
            .header("connection")
            .is_some_and(|value| value.eq_ignore_ascii_case("close"));
        let head_only = request.method == "HEAD";
        match (shared.handler)(request) {
            Reply::Send(response) => {
                let mut bytes = head(&response);
                if !head_only {
                    bytes.extend_from_slice(&response.body);
                }
                stream.write_all(&bytes)?;
            }
            Reply::Cut(response) => {
                let mut bytes = head(&response);
                bytes.extend_from_slice(&response.body[..response.body.len() / 2]);
                return stream.write_all(&bytes);
            }
            Reply::Hang => {
                // Until the caller closes, or the server does.
                return io::copy(&mut stream, &mut io::sink()).map(drop);
            }
            Reply::Drop => return Ok(()),
        }
        if close {
            return Ok(());
        }
    }
    Ok(())
}

fn head(response: &Response) -> Vec<u8> {
    let mut text = format!("HTTP/1.1 {} -\r\n", response.status);
    for (name, value) in &response.headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if response.header("content-length").is_none() && response.status != 204 && response.status != 304 {
        text.push_str(&format!("content-length: {}\r\n", response.body.len()));
    }
    text.push_str("\r\n");
    text.into_bytes()
}

/// Reads the next request of a kept-alive connection; `None` when the caller closed it.
fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<Option<Request>> {
    let (mut request, head_length) = loop {
        let mut slots = [httparse::EMPTY_HEADER; 128];
        let mut parsed = httparse::Request::new(&mut slots);
        match parsed.parse(buffer) {
            Ok(httparse::Status::Complete(length)) => {
                let request = Request {
                    method: parsed.method.unwrap_or_default().into(),
                    target: parsed.path.unwrap_or_default().into(),
                    headers: owned_headers(parsed.headers),
                    body: Vec::new(),
                };
                break (request, length);
            }
            Ok(httparse::Status::Partial) => {}
            Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        }
        if fill(stream, buffer)? == 0 {
            return Ok(None);
        }
    };
    buffer.drain(..head_length);
    if request
        .header("expect")
        .is_some_and(|value| value.eq_ignore_ascii_case("100-continue"))
    {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    request.body = read_body(stream, buffer, &request.headers, false)?;
    if header(&request.headers, "x-amz-decoded-content-length").is_some() {
        // S3's own framing inside the body: the payload in chunks, then trailing checksums.
        if let Some((payload, _)) = unchunk(&request.body) {
            request.body = payload;
        }
    }
    Ok(Some(request))
}

fn owned_headers(headers: &[httparse::Header<'_>]) -> Vec<(String, String)> {
    headers
        .iter()
        .map(|h| (h.name.to_owned(), String::from_utf8_lossy(h.value).into_owned()))
        .collect()
}

fn fill(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<usize> {
    let mut chunk = [0_u8; 64 * 1024];
    let read = stream.read(&mut chunk)?;
    buffer.extend_from_slice(&chunk[..read]);
    Ok(read)
}

fn read_body(
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
    headers: &[(String, String)],
    to_the_end: bool,
) -> io::Result<Vec<u8>> {
    if header(headers, "transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
        loop {
            if let Some((body, length)) = unchunk(buffer) {
                buffer.drain(..length);
                return Ok(body);
            }
            if fill(stream, buffer)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
    let Some(length) = header(headers, "content-length").and_then(|value| value.trim().parse::<usize>().ok())
    else {
        if to_the_end {
            while fill(stream, buffer)? > 0 {}
            return Ok(std::mem::take(buffer));
        }
        return Ok(Vec::new());
    };
    while buffer.len() < length {
        if fill(stream, buffer)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(buffer.drain(..length).collect())
}

/// The payload and how many bytes it took, or `None` while the last chunk is not there.
fn unchunk(bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    let mut payload = Vec::new();
    let mut at = 0;
    loop {
        let line_end = at + find(&bytes[at..], b"\r\n")?;
        let line = std::str::from_utf8(&bytes[at..line_end]).ok()?;
        let size = usize::from_str_radix(line.split(';').next()?.trim(), 16).ok()?;
        at = line_end + 2;
        if size == 0 {
            // Trailers, then an empty line.
            loop {
                let end = at + find(&bytes[at..], b"\r\n")?;
                let empty = end == at;
                at = end + 2;
                if empty {
                    return Some((payload, at));
                }
            }
        }
        payload.extend_from_slice(bytes.get(at..at + size)?);
        at += size + 2;
        if at > bytes.len() {
            return None;
        }
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

/// Sends one request to `base` (`http://host:port`) on a connection of its own and reads the whole answer.
///
/// # Errors
/// What the socket says, or `InvalidData` for something that is not HTTP.
pub fn send(base: &str, request: &Request) -> io::Result<Response> {
    let authority = base
        .trim_end_matches('/')
        .strip_prefix("http://")
        .ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("expected http://HOST:PORT, got {base}"),
            )
        })?;
    let mut stream = TcpStream::connect(authority)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut text = format!("{} {} HTTP/1.1\r\n", request.method, request.target);
    if request.header("host").is_none() {
        text.push_str(&format!("host: {authority}\r\n"));
    }
    for (name, value) in &request.headers {
        // The body goes out whole, on a connection of its own.
        if !["content-length", "transfer-encoding", "connection", "expect"]
            .iter()
            .any(|own| name.eq_ignore_ascii_case(own))
        {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    text.push_str(&format!(
        "content-length: {}\r\nconnection: close\r\n\r\n",
        request.body.len()
    ));
    let mut bytes = text.into_bytes();
    bytes.extend_from_slice(&request.body);
    stream.write_all(&bytes)?;

    let mut buffer = Vec::new();
    loop {
        let mut slots = [httparse::EMPTY_HEADER; 128];
        let mut parsed = httparse::Response::new(&mut slots);
        match parsed.parse(&buffer) {
            Ok(httparse::Status::Complete(length)) => {
                let status = parsed.code.unwrap_or_default();
                let headers = owned_headers(parsed.headers);
                buffer.drain(..length);
                if status == 100 {
                    continue;
                }
                let bodyless = request.method == "HEAD" || status == 204 || status == 304;
                let body = if bodyless {
                    Vec::new()
                } else {
                    read_body(&mut stream, &mut buffer, &headers, true)?
                };
                let headers = headers
                    .into_iter()
                    .filter(|(name, _)| {
                        !["transfer-encoding", "connection", "content-length", "keep-alive"]
                            .iter()
                            .any(|hop| name.eq_ignore_ascii_case(hop))
                    })
                    .collect();
                return Ok(Response {
                    status,
                    headers,
                    body,
                });
            }
            Ok(httparse::Status::Partial) => {}
            Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        }
        if fill(&mut stream, &mut buffer)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Decodes `a=b&c=d`, as in a query string or a form body.
pub fn parse_form(text: &str) -> Vec<(String, String)> {
    text.split('&')
        .filter(|part| !part.is_empty())
        .map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            (percent_decode(name, true), percent_decode(value, true))
        })
        .collect()
}

fn percent_decode(text: &str, plus_is_space: bool) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = (bytes[at] == b'%')
            .then(|| bytes.get(at + 1..at + 3))
            .flatten()
            .and_then(|pair| std::str::from_utf8(pair).ok())
            .and_then(|pair| u8::from_str_radix(pair, 16).ok());
        if let Some(byte) = hex {
            decoded.push(byte);
            at += 3;
        } else {
            decoded.push(if plus_is_space && bytes[at] == b'+' {
                b' '
            } else {
                bytes[at]
            });
            at += 1;
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}
