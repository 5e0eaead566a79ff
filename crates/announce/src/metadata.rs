//! The metadata of a computer over HTTP (WS-Transfer Get, as DPWS carries it): one POST a connection.
//!
//! This file owns the limits of connections, time and size. Only hosts of the link are served, because the socket has an
//! address that others may reach.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::AsyncWrite;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use weft_wire::wsd::{CONTENT_TYPE, MAX_MESSAGE};

use crate::discovery::{Refused, Target};
use crate::links::Link;

/// Most connections to one address.
const MAX_CONNECTIONS: usize = 16;
/// Longest head of a request, and most headers in it.
const MAX_HEAD: usize = 4 << 10;
const MAX_HEADERS: usize = 32;
/// How long a connection may take.
const WITHIN: Duration = Duration::from_secs(10);

/// Serves this computer's metadata to the hosts of a link, until the task is aborted.
pub async fn serve(listener: TcpListener, target: Arc<Mutex<Target>>, link: Arc<Link>) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(e) => {
                tracing::debug!("WS-Discovery's metadata on {}: {e}", link.name);
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        // A connection from another network, or one beyond the limit, is closed.
        let Some(place) = places.clone().try_acquire_owned().ok().filter(|_| link.is_near(from.ip())) else {
            continue;
        };
        let target = target.clone();
        tokio::spawn(async move {
            match tokio::time::timeout(WITHIN, converse(stream, from, &target)).await {
                Ok(Ok(())) => {}
                Ok(Err(e)) => tracing::debug!("WS-Discovery's metadata for {from}: {e}"),
                Err(_) => tracing::debug!("WS-Discovery's metadata for {from}: too slow"),
            }
            drop(place);
        });
    }
}

async fn converse(mut stream: TcpStream, from: SocketAddr, target: &Mutex<Target>) -> io::Result<()> {
    let mut received = Vec::new();
    let mut was_told_to_continue = false;
    let response = loop {
        match Asked::parse(&received) {
            Ok(Some(Asked { body: Body::Whole(body), path })) => {
                let mut target = target.lock().unwrap_or_else(PoisonError::into_inner);
                break match target.path() == path {
                    true => answer(target.metadata(body)),
                    false => refusal(404, "Not Found", ""),
                };
            }
            Ok(Some(Asked { body: Body::Expected, .. })) if !was_told_to_continue => {
                was_told_to_continue = true;
                write(&stream, b"HTTP/1.1 100 Continue\r\n\r\n").await?;
            }
            Ok(_) => {}
            Err(refused) => break refused,
        }
        stream.readable().await?;
        let mut part = [0; 2048];
        match stream.try_read(&mut part) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => received.extend(part.iter().take(len)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    };
    tracing::debug!("WS-Discovery's metadata for {from}: {} bytes", response.len());
    write(&stream, &response).await?;
    std::future::poll_fn(|cx| Pin::new(&mut stream).poll_shutdown(cx)).await?;
    // Closing a socket with unread bytes resets the connection, and the peer could lose the answer (RFC 9112 9.6).
    let mut rest = [0; 2048];
    loop {
        stream.readable().await?;
        match stream.try_read(&mut rest) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
}

async fn write(stream: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(len) => bytes = bytes.get(len..).unwrap_or_default(),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// A request whose head is complete.
#[derive(Debug, PartialEq, Eq)]
struct Asked<'a> {
    path: &'a str,
    body: Body<'a>,
}

#[derive(Debug, PartialEq, Eq)]
enum Body<'a> {
    Whole(&'a [u8]),
    /// A part of it is missing.
    Partial,
    /// The peer waits until it is told to send it (RFC 9110 10.1.1).
    Expected,
}

impl<'a> Asked<'a> {
    /// Parses the bytes received so far; `None` if the head is not complete yet.
    fn parse(received: &'a [u8]) -> Result<Option<Asked<'a>>, Vec<u8>> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        let head = match request.parse(received) {
            Ok(httparse::Status::Complete(len)) if len <= MAX_HEAD => len,
            Ok(httparse::Status::Partial) if received.len() <= MAX_HEAD => return Ok(None),
            Ok(_) | Err(httparse::Error::TooManyHeaders) => {
                return Err(refusal(431, "Request Header Fields Too Large", ""));
            }
            Err(_) => return Err(refusal(400, "Bad Request", "")),
        };
        if request.method != Some("POST") {
            return Err(refusal(405, "Method Not Allowed", "Allow: POST\r\n"));
        }
        let header = |name: &'static str| {
            let found = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name));
            found.map(|header| std::str::from_utf8(header.value).unwrap_or_default().trim())
        };
        let mut lengths = header("content-length");
        let (length, other) = (lengths.next(), lengths.next());
        if other.is_some() || header("transfer-encoding").next().is_some() {
            return Err(refusal(411, "Length Required", ""));
        }
        let length = length.filter(|digits| !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit()));
        let Some(length) = length else { return Err(refusal(411, "Length Required", "")) };
        let Some(length) = length.parse::<usize>().ok().filter(|len| *len <= MAX_MESSAGE) else {
            return Err(refusal(413, "Content Too Large", ""));
        };
        let is_expected = header("expect").any(|value| value.eq_ignore_ascii_case("100-continue"));
        let after = received.get(head..).unwrap_or_default();
        let body = match after.get(..length) {
            Some(body) => Body::Whole(body),
            None if is_expected && after.is_empty() => Body::Expected,
            None => Body::Partial,
        };
        Ok(Some(Asked { path: request.path.unwrap_or_default(), body }))
    }
}

fn answer(metadata: Result<Vec<u8>, Refused>) -> Vec<u8> {
    match metadata {
        Ok(content) => {
            let kind = format!("Content-Type: {CONTENT_TYPE}; charset=utf-8\r\n");
            [head(200, "OK", &kind, content.len()).into_bytes(), content].concat()
        }
        Err(Refused::Elsewhere) => refusal(404, "Not Found", ""),
        Err(Refused::Request) => refusal(400, "Bad Request", ""),
    }
}

fn refusal(status: u16, reason: &str, headers: &str) -> Vec<u8> {
    head(status, reason, headers, 0).into_bytes()
}

fn head(status: u16, reason: &str, headers: &str, length: usize) -> String {
    format!("HTTP/1.1 {status} {reason}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(request: &[u8]) -> String {
        let refused = Asked::parse(request).unwrap_err();
        String::from_utf8(refused).unwrap().split(' ').nth(1).unwrap().to_owned()
    }

    #[test]
    fn a_request_is_a_post_with_its_length() {
        let request = b"POST /x HTTP/1.1\r\nHost: a\r\ncontent-length: 3\r\n\r\nabc";
        let asked = Asked { path: "/x", body: Body::Whole(b"abc") };
        assert_eq!(Asked::parse(request), Ok(Some(asked)));
        for len in 0..request.len() {
            let parsed = Asked::parse(&request[..len]).unwrap();
            assert!(parsed.is_none_or(|asked| asked.body == Body::Partial), "{len}");
        }
        let waits = b"POST /x HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-Continue\r\n\r\n";
        assert_eq!(Asked::parse(waits), Ok(Some(Asked { path: "/x", body: Body::Expected })));
    }

    #[test]
    fn other_requests_are_refused() {
        assert_eq!(status(b"GET /x HTTP/1.1\r\n\r\n"), "405");
        assert_eq!(status(b"POST /x HTTP/1.1\r\n\r\n"), "411");
        assert_eq!(status(b"POST /x HTTP/1.1\r\nContent-Length: +3\r\n\r\n"), "411");
        assert_eq!(status(b"POST /x HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n"), "411");
        assert_eq!(status(b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"), "411");
        assert_eq!(status(b"POST /x HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n"), "413");
        assert_eq!(
            status(format!("POST /x HTTP/1.1\r\nContent-Length: {}\r\n\r\n", MAX_MESSAGE + 1).as_bytes()),
            "413"
        );
        assert_eq!(status(b"\xff\xff\xff\xff"), "400");
        let many = format!("POST /x HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(MAX_HEADERS + 1));
        assert_eq!(status(many.as_bytes()), "431");
        assert_eq!(status(format!("POST /x HTTP/1.1\r\na: {}", "b".repeat(MAX_HEAD)).as_bytes()), "431");
    }
}
