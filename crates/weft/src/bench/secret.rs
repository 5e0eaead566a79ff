//! The conversation with an agent: lines of JSON, each with a code that only holders of the token can compute.
//!
//! Both sides send a random number, and prove with it that they know the token. The key of the conversation is
//! derived from both numbers, and every line is numbered under it, so that no line can be changed, repeated or
//! inserted. The contents are not hidden (they contain no password), and guessing is not limited, because the token
//! has 128 bits.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ring::hmac;
use serde::Serialize;
use serde::de::DeserializeOwned;
use weft_machine::random;

use crate::hex::{hex, of_hex};

/// Maximum length of a line: the histograms of one run, with a margin.
const LONGEST_LINE: u64 = 16 << 20;
/// Maximum length of a stranger's first line.
const LONGEST_GREETING: u64 = 256;
/// Time limit for the whole greeting, in any number of pieces: an agent talks to one conductor at a time.
const PATIENCE: Duration = Duration::from_secs(5);
/// The first word of both sides, with the protocol's version.
const WORD: &str = "weft-bench-agent/1";

/// A new token or password: 128 random bits in hexadecimal.
pub(super) fn generate() -> Result<String, random::Unavailable> {
    Ok(hex(random::bytes::<16>()?))
}

/// The sender of a line; a code is valid for one side only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Agent,
    Conductor,
}

impl Side {
    fn other(self) -> Side {
        match self {
            Side::Agent => Side::Conductor,
            Side::Conductor => Side::Agent,
        }
    }

    fn word(self) -> &'static [u8] {
        match self {
            Side::Agent => b"agent",
            Side::Conductor => b"conductor",
        }
    }
}

/// An established conversation.
pub(super) struct Talk {
    reader: BufReader<Timed>,
    writer: TcpStream,
    key: hmac::Key,
    side: Side,
    sent: u64,
    received: u64,
}

/// Reads until a deadline.
struct Timed {
    stream: TcpStream,
    until: Option<Instant>,
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let late = || io::Error::new(io::ErrorKind::TimedOut, "the other side did not greet in time");
        let left = match self.until {
            None => None,
            Some(until) => {
                let left = until.saturating_duration_since(Instant::now());
                Some(left).filter(|left| !left.is_zero()).ok_or_else(late).map(Some)?
            }
        };
        self.stream.set_read_timeout(left)?;
        self.stream.read(into).map_err(|e| if e.kind() == io::ErrorKind::WouldBlock { late() } else { e })
    }
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

impl Talk {
    /// Exchanges greetings; an error if the other side does not know the token.
    pub(super) fn begin(stream: TcpStream, side: Side, token: &str) -> io::Result<Talk> {
        Talk::begin_within(stream, side, token, PATIENCE)
    }

    fn begin_within(stream: TcpStream, side: Side, token: &str, patience: Duration) -> io::Result<Talk> {
        stream.set_nodelay(true)?;
        let nonce = random::bytes::<16>()?;
        let mut writer = stream.try_clone()?;
        let mut reader = BufReader::new(Timed { stream, until: Instant::now().checked_add(patience) });
        writeln!(writer, "{WORD} {}", hex(nonce))?;
        let greeting = line(&mut reader, LONGEST_GREETING)?;
        let theirs = greeting.strip_prefix(WORD).map(str::trim).filter(|nonce| nonce.len() == 32);
        let theirs =
            theirs.ok_or_else(|| wrong("this is not a weft bench agent of this version"))?.to_owned();
        let ours = hex(nonce);
        let (first, second) = if side == Side::Agent { (ours, theirs) } else { (theirs, ours) };
        let token = hmac::Key::new(hmac::HMAC_SHA256, token.trim().as_bytes());
        let secret = hmac::sign(&token, format!("{WORD} {first} {second}").as_bytes());
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_ref());
        let mut talk = Talk { reader, writer, key, side, sent: 0, received: 0 };
        // Before this, the agent does nothing.
        talk.send(&"hello")?;
        let hello: String = talk.receive().map_err(|e| match e.kind() {
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
                wrong("the agent has another token: it prints its token at the start; set WEFT_AGENT_TOKEN to it on this host")
            }
            _ => e,
        })?;
        if hello != "hello" {
            return Err(wrong("the other side did not send hello"));
        }
        talk.reader.get_mut().until = None;
        Ok(talk)
    }

    /// Sends a message.
    pub(super) fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_string(message)?;
        let code = hmac::sign(&self.key, &numbered(self.side, self.sent, &text));
        self.sent = self.sent.saturating_add(1);
        let mut bytes = hex(code).into_bytes();
        bytes.push(b' ');
        bytes.extend_from_slice(text.as_bytes());
        bytes.push(b'\n');
        self.writer.write_all(&bytes)
    }

    /// The next message.
    pub(super) fn receive<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        let line = line(&mut self.reader, LONGEST_LINE)?;
        let (code, text) = line.split_once(' ').ok_or_else(|| wrong("a line without a code"))?;
        let code = of_hex(code).ok_or_else(|| wrong("a malformed code"))?;
        hmac::verify(&self.key, &numbered(self.side.other(), self.received, text), &code)
            .map_err(|_| wrong("a line that the other side did not write"))?;
        self.received = self.received.saturating_add(1);
        Ok(serde_json::from_str(text)?)
    }
}

fn numbered(side: Side, number: u64, text: &str) -> Vec<u8> {
    [side.word(), &number.to_be_bytes(), text.as_bytes()].concat()
}

fn line(reader: &mut BufReader<Timed>, longest: u64) -> io::Result<String> {
    let mut line = String::new();
    reader.by_ref().take(longest).read_line(&mut line)?;
    match line.strip_suffix('\n') {
        Some(line) => Ok(line.to_owned()),
        None if line.is_empty() => {
            Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the other side closed the connection"))
        }
        None => Err(wrong("a line without an end")),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    #[test]
    fn who_knows_the_token_is_understood() {
        let (one, other) = pair();
        let agent = std::thread::spawn(move || {
            let mut talk = Talk::begin(other, Side::Agent, "secret").unwrap();
            let number: u32 = talk.receive().unwrap();
            talk.send(&(number + 1)).unwrap();
        });
        let mut talk = Talk::begin(one, Side::Conductor, " secret\n").unwrap();
        talk.send(&41).unwrap();
        assert_eq!(talk.receive::<u32>().unwrap(), 42);
        agent.join().unwrap();
    }

    #[test]
    fn who_does_not_know_it_is_told_what_is_missing_and_gets_nothing() {
        let (one, other) = pair();
        let agent = std::thread::spawn(move || Talk::begin(other, Side::Agent, "secret").err().unwrap());
        let refused = Talk::begin(one, Side::Conductor, "guess").err().unwrap();
        assert!(refused.to_string().contains("WEFT_AGENT_TOKEN"), "{refused}");
        assert!(agent.join().unwrap().to_string().contains("the agent has another token"));
    }

    #[test]
    fn who_greets_a_byte_at_a_time_is_let_go_when_the_time_is_over() {
        // The time limit covers the whole line, so the second byte does not extend it.
        let (mut one, other) = pair();
        one.write_all(b"w").unwrap();
        let mut reader = Timed { stream: other, until: Some(Instant::now() + PATIENCE) };
        assert_eq!(reader.read(&mut [0; 256]).unwrap(), 1);
        one.write_all(b"e").unwrap();
        reader.until = Some(Instant::now());
        assert_eq!(reader.read(&mut [0; 256]).unwrap_err().kind(), io::ErrorKind::TimedOut);
        // Nor does the limit extend if no more bytes arrive.
        let (mut silent, other) = pair();
        silent.write_all(b"weft").unwrap();
        let ended =
            Talk::begin_within(other, Side::Agent, "secret", Duration::from_millis(20)).err().unwrap();
        assert_eq!(ended.kind(), io::ErrorKind::TimedOut, "{ended}");
    }

    #[test]
    fn strangers_and_echoes_are_let_go() {
        for said in [
            "GET / HTTP/1.1\r\n",
            "weft-bench-agent/1 short\n",
            "weft-bench-agent/2 0123456789abcdef0123456789abcdef\n",
        ] {
            let (mut one, other) = pair();
            one.write_all(said.as_bytes()).unwrap();
            assert!(Talk::begin(other, Side::Agent, "secret").is_err(), "{said:?}");
        }
        // The agent's own lines, sent back to it, are not accepted.
        let (one, other) = pair();
        let mut echo = one.try_clone().unwrap();
        std::thread::spawn(move || io::copy(&mut BufReader::new(one), &mut echo));
        assert!(Talk::begin(other, Side::Agent, "secret").is_err());
    }
}
