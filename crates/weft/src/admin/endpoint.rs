//! The server side of the admin socket: the socket, and the loop that takes requests.
//!
//! It serves at most [`MOST_CONNECTIONS`] connections. The caller passes the function that carries requests out.
//!
//! Only this user and root can connect: the folder and the socket are closed to others, and the kernel reports who
//! connects. These connections do not count as clients, and none keeps the process from ending.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use std::cell::Cell;
use std::io::{self, IoSliceMut};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{Either, LocalBoxFuture, select};
use serde_json::Value;
use weft_machine::{Stream, rt};

use super::{Answer, MAX_REQUEST, Request, SUFFIX, make_folder, pid_of};
use crate::Failure;
use crate::listen::{Stop, unix};

/// Maximum number of connections; further ones wait to be accepted.
const MOST_CONNECTIONS: usize = 16;
/// How long a connection may be silent between requests.
const IDLE: Duration = Duration::from_secs(60);

/// Carries out a request of the user with this id; the caller gets the text of an error. The stop reports that the caller has hung up: then a
/// pure wait ends, but a change that has begun continues.
pub(crate) type Handler = Rc<dyn Fn(Request, u32, Stop) -> LocalBoxFuture<'static, Result<Value, Failure>>>;

/// A bound socket that does not answer yet.
pub(crate) struct Endpoint(unix::PathListener);

impl Endpoint {
    /// Binds the socket of this process, and removes the sockets of dead servers.
    pub(crate) fn bind(state: &Path) -> io::Result<Endpoint> {
        let folder = make_folder(state)?;
        // A socket that another server has bound but does not listen on yet looks like that of a dead server.
        let turn = std::fs::File::open(&folder)?;
        rustix::fs::flock(&turn, rustix::fs::FlockOperation::LockExclusive)?;
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if pid_of(&path).is_some() && unix::is_abandoned(&path) {
                match std::fs::remove_file(&path) {
                    // Another starting server has removed it.
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                    other => other?,
                }
            }
        }
        let path = folder.join(format!("{}{SUFFIX}", std::process::id()));
        let listener = unix::PathListener::bind(&path)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        Ok(Endpoint(listener))
    }

    /// Hands over the socket's file to a caller that is certain to drop it at the end.
    pub(crate) fn take_file(&mut self) -> Option<unix::SocketFile> {
        self.0.take_file()
    }

    /// Answers until `stop`; then removes the socket's file, unless it was taken.
    pub(crate) async fn serve(self, handler: Handler, stop: Stop) {
        let connections = Rc::new(Cell::new(0));
        let own = rustix::process::geteuid().as_raw();
        while let Some(accepted) = stop.or(self.0.accept_known()).await {
            let (socket, uid) = match accepted {
                Ok((socket, uid)) if uid == own || uid == 0 => (socket, uid),
                Ok((_, uid)) => {
                    tracing::warn!("user {uid} was refused at the admin socket");
                    continue;
                }
                Err(e) => {
                    tracing::warn!("the admin socket: {e}; trying again in a second");
                    rt::sleep(Duration::from_secs(1)).await;
                    continue;
                }
            };
            if connections.get() >= MOST_CONNECTIONS {
                tracing::warn!("limit reached: {MOST_CONNECTIONS} connections to the admin socket");
                continue;
            }
            let counted = Counted::enter(&connections);
            let handler = handler.clone();
            rt::spawn(async move {
                let _counted = counted;
                let talked = match Stream::from_socket(socket) {
                    Ok(stream) => talk(&stream, uid, &handler).await,
                    Err(e) => Err(e),
                };
                if let Err(e) = talked {
                    tracing::debug!("a connection to the admin socket ended: {e}");
                }
            })
            .detach();
        }
    }
}

/// Counts one connection until it is dropped.
struct Counted(Rc<Cell<usize>>);

impl Counted {
    fn enter(count: &Rc<Cell<usize>>) -> Counted {
        count.set(count.get().saturating_add(1));
        Counted(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

/// Serves one connection: a line in, a line out.
async fn talk(stream: &Stream, uid: u32, handler: &Handler) -> io::Result<()> {
    let mut received = Vec::new();
    loop {
        while let Some(end) = received.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = received.drain(..=end).collect();
            let hung_up = Stop::default();
            let answering = pin!(answer(&line, uid, handler, hung_up.clone()));
            let answer = match select(answering, pin!(hangs_up(stream, &mut received))).await {
                Either::Left((answer, _)) => answer,
                Either::Right(((), answering)) => {
                    hung_up.stop();
                    answering.await
                }
            };
            let mut bytes = serde_json::to_vec(&answer)?;
            bytes.push(b'\n');
            stream.send_all(&[bytes.into()]).await?;
        }
        if received.len() > MAX_REQUEST {
            return Err(io::Error::other("a request without an end"));
        }
        if rt::timeout(IDLE, receive(stream, &mut received)).await?? == 0 {
            return Ok(());
        }
    }
}

/// Appends the next bytes; returns how many, 0 at the end.
async fn receive(stream: &Stream, received: &mut Vec<u8>) -> io::Result<usize> {
    let mut chunk = [0; 4096];
    let mut into = [IoSliceMut::new(&mut chunk)];
    let n = stream.recv(&mut into).await?;
    received.extend_from_slice(chunk.get(..n).unwrap_or_default());
    Ok(n)
}

/// Returns when the other end has hung up. Requests that arrive meanwhile are kept, as far as there is room.
async fn hangs_up(stream: &Stream, received: &mut Vec<u8>) {
    while received.len() <= MAX_REQUEST {
        match receive(stream, received).await {
            Ok(1..) => {}
            Ok(0) | Err(_) => return,
        }
    }
    std::future::pending().await
}

async fn answer(line: &[u8], uid: u32, handler: &Handler, hung_up: Stop) -> Answer {
    match serde_json::from_slice::<Request>(line) {
        Ok(request) => match handler(request, uid, hung_up).await {
            Ok(value) => Answer::Ok(value),
            Err(e) => Answer::Error(e.to_string()),
        },
        Err(e) => Answer::Error(format!("this server does not know the request ({e}): is it an older Weft?")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::fs::MetadataExt;

    use super::super::servers;
    use super::*;

    fn echo() -> Handler {
        Rc::new(|request, _, _| Box::pin(async move { Ok(serde_json::to_value(request).unwrap()) }))
    }

    /// Runs a server on a state directory while `client` talks to it on a thread.
    fn with_server<T: Send + 'static>(state: &Path, client: impl FnOnce() -> T + Send + 'static) -> T {
        with_handler(state, echo(), client)
    }

    fn with_handler<T: Send + 'static>(
        state: &Path,
        handler: Handler,
        client: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        rt::block_on(async {
            let endpoint = Endpoint::bind(state).unwrap();
            let stop = Stop::default();
            let serving = rt::spawn(endpoint.serve(handler, stop.clone()));
            let said = rt::blocking(client).await;
            stop.stop();
            serving.await;
            said
        })
        .unwrap()
    }

    #[test]
    fn a_state_directory_that_is_a_file_is_called_so() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let e = Endpoint::bind(file.path()).err().unwrap();
        assert_eq!(e.to_string(), "that is a file; name a directory");
    }

    #[test]
    fn a_server_is_found_asked_and_gone_when_it_ends() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().to_owned();
        let said = with_server(dir.path(), move || {
            let found = servers(&state).unwrap();
            assert_eq!(found.iter().map(|server| server.pid).collect::<Vec<_>>(), [std::process::id()]);
            found[0].ask(&Request::Status).unwrap()
        });
        assert_eq!(said["do"], "status");
        assert!(servers(dir.path()).unwrap().is_empty());
        assert_eq!(std::fs::read_dir(dir.path().join("run")).unwrap().count(), 0);
    }

    #[test]
    fn what_a_killed_server_left_is_passed_over_and_cleaned_up() {
        let dir = tempfile::tempdir().unwrap();
        let folder = make_folder(dir.path()).unwrap();
        let left = folder.join("1.sock");
        drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
        assert!(servers(dir.path()).unwrap().is_empty());
        with_server(dir.path(), || ());
        assert!(!left.exists());
    }

    #[test]
    fn the_socket_is_closed_to_others_and_so_is_its_folder() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().to_owned();
        with_server(dir.path(), move || {
            let socket = state.join("run").join(format!("{}.sock", std::process::id()));
            assert_eq!(socket.metadata().unwrap().mode() & 0o777, 0o600);
            assert_eq!(state.join("run").metadata().unwrap().mode() & 0o777, 0o700);
        });
        std::fs::set_permissions(dir.path().join("run"), std::fs::Permissions::from_mode(0o755)).unwrap();
        let refused = Endpoint::bind(dir.path()).err().unwrap();
        assert!(refused.to_string().contains("chmod 700"), "{refused}");
    }

    #[test]
    fn what_is_no_request_is_answered_and_the_next_one_heard() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().to_owned();
        let lines = with_server(dir.path(), move || {
            let socket = state.join("run").join(format!("{}.sock", std::process::id()));
            let stream = unix::connect(&socket).unwrap();
            // Two requests in one piece; the second is split over two pieces.
            (&stream).write_all(b"{\"do\":\"fly\"}\n{\"do\":").unwrap();
            (&stream).write_all(b"\"status\"}\n").unwrap();
            let mut lines = BufReader::new(&stream).lines();
            [lines.next().unwrap().unwrap(), lines.next().unwrap().unwrap()]
        });
        assert!(lines[0].starts_with("{\"error\":\"this server does not know"), "{}", lines[0]);
        assert_eq!(lines[1], "{\"ok\":{\"do\":\"status\"}}");
    }

    #[test]
    fn a_request_that_waits_is_told_when_whoever_asked_has_hung_up() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().to_owned();
        let (ended, has_ended) = std::sync::mpsc::channel();
        let handler: Handler = Rc::new(move |_, _, hung_up| {
            let ended = ended.clone();
            Box::pin(async move {
                let waited = hung_up.or(std::future::pending::<()>()).await;
                ended.send(waited).unwrap();
                Ok(Value::Null)
            })
        });
        let told = with_handler(dir.path(), handler, move || {
            let socket = state.join("run").join(format!("{}.sock", std::process::id()));
            let stream = unix::connect(&socket).unwrap();
            // Another request does not count as hanging up.
            (&stream).write_all(b"{\"do\":\"status\"}\n{\"do\":").unwrap();
            let early = has_ended.try_recv();
            drop(stream);
            (early, has_ended.recv_timeout(Duration::from_secs(60)))
        });
        assert_eq!(told, (Err(std::sync::mpsc::TryRecvError::Empty), Ok(None)));
    }

    #[test]
    fn a_request_without_an_end_ends_the_connection() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().to_owned();
        let read = with_server(dir.path(), move || {
            let socket = state.join("run").join(format!("{}.sock", std::process::id()));
            let stream = unix::connect(&socket).unwrap();
            // The server may hang up before it has received all of it.
            let _ = (&stream).write_all(&vec![b' '; MAX_REQUEST + (8 << 10)]);
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap_or(0)
        });
        assert_eq!(read, 0);
    }
}
