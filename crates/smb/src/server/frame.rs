//! Handles one message from the transport: decrypts it, splits it into requests, admits, executes and answers them.
//!
//! Spec: [MS-SMB2] 3.3.5.2 and its sections in their order. Owns the state that the requests of one compound share.
//! Whether a request may run is decided in [`super::admission`]. `Err(reason)` ends the connection, which logs it;
//! everything else is an answer.

#[cfg(test)]
use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use weft_machine::Buf;
use weft_machine::buf::MAX_BUF;
use weft_machine::meter::{self as clock, Started, Subject};
use weft_machine::recorder::{self, AtOnce, Hop, Operation, Recorded};
use weft_machine::rt;
use weft_wire::smb2::compression::{MAGIC_COMPRESSED, UNCHAINED_LEN};
use weft_wire::smb2::header::{Flags, MAGIC, MAGIC_SMB1};
use weft_wire::smb2::transform::MAGIC_ENCRYPTED;
use weft_wire::smb2::{Command, Dialect, FileId, HEADER_LEN, Header, Id, NtStatus, compound, echo};

use super::admission::{self, InSession, Incoming, Protection, Refused};
use super::answer::{Answer, Failure, Reply};
use super::concerned::Concerned;
use super::connection::Connection;
use super::context::OpContext;
use super::outgoing::{self, Answered, Ready};
use super::session::Session;
use super::{meter, negotiate, ops, session_setup, tree};
use crate::crypto::{self, SigningKey};

/// Why a connection ends, for the log.
pub(super) type Reason = &'static str;

/// The longest message before the first log-on: a Kerberos ticket has at most 48,000 bytes on Windows.
const MAX_STRANGERS_BYTES: usize = 64 * 1024;
/// The longest request without payload (3.3.5.2).
const MAX_CONTROL_BYTES: usize = 68 * 1024;
/// Shorter decrypted messages do not wait for a pool buffer.
const SHORT_BYTES: usize = 4096;

const WRONG_MESSAGE_ID: Reason = "3.3.5.2.3: a MessageId was used twice or never granted";
const NO_NONCES: Reason = "the session's nonces are used up";

/// The state that the requests of one message share ([MS-SMB2] 3.3.5.2.7.2).
struct Chain {
    /// The session whose keys encrypted the message.
    sealed: Option<Arc<Session>>,
    index: usize,
    /// Whether this is the last request.
    last: bool,
    session_id: u64,
    tree_id: Option<u32>,
    file_id: Option<FileId>,
    /// Why there is no `file_id`: the preceding CREATE failed.
    failed: Option<NtStatus>,
}

impl Chain {
    /// Whether the request is the only one of its message.
    fn alone(&self) -> bool {
        self.index == 0 && self.last
    }
}

#[cfg(test)]
thread_local! {
    /// Number of READs and WRITEs on the fast path.
    pub(super) static AT_ONCE: Cell<usize> = const { Cell::new(0) };
}

/// A message that may have been decrypted.
pub(super) struct Opened {
    /// The message; encrypted only if `sealed` is `None`.
    body: Bytes,
    /// The session whose keys encrypted it.
    sealed: Option<Arc<Session>>,
}

impl Opened {
    /// Decrypts a message; one for which there is no buffer now stays encrypted.
    fn at_once(connection: &Connection, body: Bytes) -> Result<Opened, Reason> {
        if !body.starts_with(&MAGIC_ENCRYPTED) {
            return Ok(Opened { body, sealed: None });
        }
        let (session, len) = sealed_by(connection, &body)?;
        if len < SHORT_BYTES {
            let mut plain = vec![0; len];
            open(&session, &body, &mut plain)?;
            return Ok(Opened { body: Bytes::from(plain), sealed: Some(session) });
        }
        match connection.server.config.pool.try_alloc(len) {
            Some(room) => Opened::into_room(session, &body, room, len),
            None => Ok(Opened { body, sealed: None }),
        }
    }

    /// Decrypts a message, whose length without encryption is `len`, into a buffer of the pool.
    fn into_room(session: Arc<Session>, body: &[u8], mut room: Buf, len: usize) -> Result<Opened, Reason> {
        room.set_len(len);
        open(&session, body, &mut room)?;
        Ok(Opened { body: room.freeze(), sealed: Some(session) })
    }
}

/// Handles a message until its answers are queued.
pub(super) async fn handle(connection: Rc<Connection>, message: Opened) {
    if let Err(reason) = answer_all(&connection, message).await {
        connection.terminate(reason);
    }
}

/// What [`at_once`] has done with a message.
pub(super) enum Tried {
    /// It is answered.
    Answered,
    /// It is a READ or WRITE that must wait, for [`finish`].
    Unfinished(Box<Unfinished>),
    /// It is not a READ or WRITE that is alone, or one that is refused: nothing is done but to decrypt it. For [`handle`].
    Other(Opened),
}

/// Fast path for a message that is one READ or WRITE, signed or encrypted or neither: most traffic consists of these, they
/// seldom wait, and a future would double the cost.
pub(super) fn at_once(connection: &Rc<Connection>, body: Bytes) -> Result<Tried, Reason> {
    let message = Opened::at_once(connection, body)?;
    match try_one(connection, &message) {
        Some(tried) => tried,
        None => Ok(Tried::Other(message)),
    }
}

/// `None`, with nothing done, for anything but a READ or WRITE that may run.
fn try_one(connection: &Rc<Connection>, message: &Opened) -> Option<Result<Tried, Reason>> {
    let Opened { body, sealed } = message;
    let header = Header::parse(body).ok()?;
    let simple = (Flags::PRIORITY_MASK | Flags::SIGNED).contains(header.flags)
        && header.next_command == 0
        && sealed.as_ref().is_none_or(|session| session.id == header.session_id);
    let is_suitable = match header.command {
        // Payload that is to be compressed must be in memory.
        Command::Read => body.len() <= SHORT_BYTES && connection.compression().is_none(),
        Command::Write => true,
        _ => false,
    };
    if !is_suitable || !simple || !connection.is_negotiated() {
        return None;
    }
    let started = clock::started();
    // The general path reports any refusal.
    let admitted = admission::admit(connection, &header, body, sealed.as_ref()).ok()?;
    // A pipe is not read here.
    admitted.tree().share.as_ref()?;
    let charge = connection.charge(&header);
    if !connection.take_credits(header.message_id, charge) {
        return Some(Err(WRONG_MESSAGE_ID));
    }
    let cx = OpContext::new(admitted, None, true);
    let _current = AtOnce::begin(meter::what(connection.class, header.command, meter::subject(cx.tree())));
    if header.command == Command::Write && (sealed.is_some() || cx.signed().is_some()) {
        recorder::spent_on(Hop::Decode, body.len());
    }
    #[cfg(test)]
    AT_ONCE.set(AT_ONCE.get() + 1);
    let mut reply = header.reply(NtStatus::SUCCESS, 0);
    reply.id = Id::tree(cx.tree().id);
    let unfinished = |rest| {
        let (sealed, operation) = (sealed.clone(), Operation::current());
        Some(Ok(Tried::Unfinished(Box::new(Unfinished { rest, sealed, operation }))))
    };
    let tried = match header.command {
        Command::Write => ops::try_write(&cx),
        _ => ops::try_read(&cx),
    };
    let Some(answer) = tried else {
        let cx = cx.leaving_its_buffer();
        return unfinished(Rest::Operation(cx, reply, started, charge));
    };
    reply.credits = connection.grant(charge, header.credits);
    count(&cx, started, &answer);
    let concerned = cx.concerned();
    let answered = Answered { header: reply, answer, sign: cx.signed().cloned(), hash: None };
    let max_message = connection.channel.limits().max_message;
    let ready = match sealed {
        None if answered.has_to_be_read() => return unfinished(Rest::Answer(answered, concerned)),
        None => outgoing::at_once(answered, max_message),
        Some(session) => {
            match outgoing::sealed_at_once(answered, session, &connection.answers(), max_message) {
                Ok(Ok(ready)) => ready,
                Ok(Err(_)) => return Some(Err(NO_NONCES)),
                Err(answered) => return unfinished(Rest::Answer(*answered, concerned)),
            }
        }
    };
    if sealed.is_some() {
        recorder::spent(Hop::Decode);
    }
    connection.send(Ready { concerned, ..ready });
    Some(Ok(Tried::Answered))
}

/// Work that [`at_once`] leaves to [`finish`].
pub(super) struct Unfinished {
    rest: Rest,
    /// The session whose keys encrypt the answer.
    sealed: Option<Arc<Session>>,
    operation: Operation,
}

enum Rest {
    /// The object is not ready. Its credits are granted when it has been carried out: what waits counts against them.
    Operation(OpContext, Header, Started, u16),
    /// The payload must be read before it is signed, or the encrypted message waits for a buffer.
    Answer(Answered, Concerned),
}

/// Completes a READ or WRITE that [`at_once`] returned, and sends the answer.
pub(super) fn finish(
    connection: Rc<Connection>,
    unfinished: Box<Unfinished>,
) -> Recorded<impl Future<Output = ()>> {
    let Unfinished { rest, sealed, operation } = *unfinished;
    recorder::continued(operation, async move {
        let (answered, concerned) = match rest {
            Rest::Answer(answered, concerned) => (answered, concerned),
            Rest::Operation(cx, mut header, started, charge) => {
                let carried_out = async {
                    match header.command {
                        Command::Write => ops::write(&cx).await,
                        _ => ops::read(&cx).await,
                    }
                };
                let answer = recorder::described(carried_out, || cx.details()).await;
                count(&cx, started, &answer);
                header.credits = connection.grant(charge, cx.header().credits);
                (Answered { header, answer, sign: cx.signed().cloned(), hash: None }, cx.concerned())
            }
        };
        let sent = send(&connection, vec![answered], sealed.as_deref(), concerned);
        if let Err(reason) = recorder::described(sent, || connection.details(concerned)).await {
            connection.terminate(reason);
        }
    })
}

fn count(cx: &OpContext, started: Started, answer: &Answer) {
    let subject = meter::subject(cx.tree());
    let (command, written) = (cx.header().command, cx.written.get());
    meter::answered(cx.connection().class, subject, command, started, answer, written);
    recorder::answered(|| cx.details());
}

async fn answer_all(connection: &Rc<Connection>, message: Opened) -> Result<(), Reason> {
    if message.body.len() > MAX_STRANGERS_BYTES && !connection.is_logged_on() {
        return Err("limit reached: length of a message before the log-on");
    }
    let Opened { body, sealed } = match message.body.starts_with(&MAGIC_ENCRYPTED) {
        true => {
            let opened = Box::pin(decrypt(connection, &message.body)).await?;
            // Its buffer is needed no longer.
            drop(message);
            recorder::spent_on(Hop::Decode, opened.body.len());
            opened
        }
        false => message,
    };
    let body = match body.starts_with(&MAGIC_COMPRESSED) {
        // An unauthenticated client must not make the server fill megabytes with a few bytes.
        true if !connection.is_logged_on() => return Err("a compressed message before the log-on"),
        true => {
            let body = Box::pin(decompress(connection, &body)).await?;
            recorder::spent(Hop::Decode);
            body
        }
        false => body,
    };
    if body.starts_with(&MAGIC_SMB1) && sealed.is_none() {
        return Box::pin(smb1(connection, &body)).await;
    }
    if body.is_empty() {
        return Err("3.3.5.2.6: an empty message");
    }
    let mut members = compound::split(body);
    let mut chain =
        Chain { sealed, index: 0, last: false, session_id: 0, tree_id: None, file_id: None, failed: None };
    let mut answers = Vec::with_capacity(1);
    let mut concerned = Concerned::default();
    while let Some(message) = members.next() {
        let message = message.map_err(|m| m.0)?;
        if chain.index == connection.server.config.limits.compound {
            return Err("limit reached: requests in a compound");
        }
        chain.last = members.is_empty();
        let answered = match answers.is_empty() {
            true => request(connection, &mut chain, message, &mut concerned).await?,
            false => Box::pin(behind_others(connection, &mut chain, message, &mut answers)).await?,
        };
        answers.extend(answered);
        chain.index = chain.index.saturating_add(1);
        if !chain.last {
            rt::yield_if_due().await;
        }
        if connection.is_ended() {
            // The answers so far are still sent: a wrong signature is reported before the connection closes.
            break;
        }
    }
    if answers.is_empty() {
        return Ok(());
    }
    send(connection, answers, chain.sealed.as_deref(), concerned).await
}

/// Runs a request that follows others in a compound. If it is the last one and must wait for a peer or for a buffer,
/// the answers to the others are sent first: they may hold what it waits for.
async fn behind_others(
    connection: &Rc<Connection>,
    chain: &mut Chain,
    message: Bytes,
    answers: &mut Vec<Answered>,
) -> Result<Option<Answered>, Reason> {
    let (sealed, last) = (chain.sealed.clone(), chain.last);
    let waits = || (connection.waits(), if last { connection.interims() } else { 0 });
    let mut concerned = Concerned::default();
    let mut request = pin!(request(connection, chain, message, &mut concerned));
    loop {
        let answered = poll_fn(|cx| {
            let before = waits();
            match request.as_mut().poll(cx) {
                Poll::Ready(answered) => Poll::Ready(Some(answered)),
                Poll::Pending if waits() != before => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        });
        match answered.await {
            Some(answered) => return answered,
            None => {
                send(connection, std::mem::take(answers), sealed.as_deref(), Concerned::default()).await?
            }
        }
    }
}

async fn send(
    connection: &Rc<Connection>,
    answers: Vec<Answered>,
    sealed: Option<&Session>,
    concerned: Concerned,
) -> Result<(), Reason> {
    let max_message = connection.channel.limits().max_message;
    let compression = connection.compression();
    let room =
        outgoing::Room { answers: connection.answers(), beside: connection.server.config.pool.clone() };
    let ready =
        outgoing::compose(answers, sealed, compression, &room, max_message).await.map_err(|_| NO_NONCES)?;
    if sealed.is_some() {
        recorder::spent(Hop::Decode);
    }
    ready.into_iter().for_each(|message| connection.send(Ready { concerned, ..message }));
    Ok(())
}

/// The session whose keys encrypted a message, and the message's length without encryption (3.3.5.2.1.1).
fn sealed_by(connection: &Connection, body: &[u8]) -> Result<(Arc<Session>, usize), Reason> {
    let header = crypto::transform(body).map_err(|m| m.0)?;
    let session =
        connection.session(header.session_id).ok_or("an encrypted message of a session unknown here")?;
    let len = header.original_message_size as usize;
    if !(HEADER_LEN..=MAX_BUF).contains(&len) {
        return Err("an encrypted message with a wrong length");
    }
    Ok((session, len))
}

/// Decrypts a message of this session into `plain`, which has its length.
fn open(session: &Session, body: &[u8], plain: &mut [u8]) -> Result<(), Reason> {
    let opener = session.keys.opener.as_ref().ok_or("an encrypted message, but no cipher was negotiated")?;
    opener.open(body, plain).map_err(|_| "an encrypted message fails authentication")?;
    if !plain.starts_with(&MAGIC) && !plain.starts_with(&MAGIC_COMPRESSED) {
        return Err("3.3.5.2.1.1: the decrypted bytes are not an SMB2 message");
    }
    Ok(())
}

/// Decrypts a message for which [`Opened::at_once`] had no buffer.
async fn decrypt(connection: &Connection, body: &Bytes) -> Result<Opened, Reason> {
    let (session, len) = sealed_by(connection, body)?;
    let room = connection.server.spare.to_decrypt(len).await;
    Opened::into_room(session, body, room, len)
}

/// Decompresses a message (3.3.5.2.1.2).
async fn decompress(connection: &Connection, body: &Bytes) -> Result<Bytes, Reason> {
    let agreed =
        connection.compression().ok_or("a compressed message, but compression was not negotiated")?;
    let most = (connection.negotiated().max_io as usize).saturating_add(256 + UNCHAINED_LEN);
    let len = agreed.original_len(body, most).map_err(|corrupt| corrupt.0)?;
    let plain = if len < SHORT_BYTES {
        let mut plain = vec![0; len];
        agreed.decompress(body, &mut plain).map_err(|corrupt| corrupt.0)?;
        Bytes::from(plain)
    } else {
        let mut plain = connection.server.spare.to_decompress(len).await;
        plain.set_len(len);
        agreed.decompress(body, &mut plain).map_err(|corrupt| corrupt.0)?;
        plain.freeze()
    };
    if !plain.starts_with(&MAGIC) {
        return Err("3.3.5.2.1.2: the decompressed bytes are not an SMB2 message");
    }
    Ok(plain)
}

async fn smb1(connection: &Rc<Connection>, body: &Bytes) -> Result<(), Reason> {
    // 3.3.5.2.3: its MessageId is 0.
    if !connection.take_credits(0, 1) {
        return Err("3.3.5.2.3: an SMB1 negotiate after other requests");
    }
    let (mut header, reply) = negotiate::smb1(connection, body)?;
    header.credits = connection.grant(1, 1);
    let answered = Answered { header, answer: Ok(reply), sign: None, hash: None };
    send(connection, vec![answered], None, Concerned::default()).await
}

/// Verifies and executes one request. `None`: no answer.
async fn request(
    connection: &Rc<Connection>,
    chain: &mut Chain,
    message: Bytes,
    concerned: &mut Concerned,
) -> Result<Option<Answered>, Reason> {
    let started = clock::started();
    let header = Header::parse(&message).map_err(|m| m.0)?;
    recorder::is(meter::what(connection.class, header.command, Subject::NONE));
    if header.is_response() {
        return Err("a response from a client");
    }
    let related = header.flags.contains(Flags::RELATED_OPERATIONS);
    if let Some(session) = &chain.sealed {
        // 3.3.5.2.1.1.
        if (!related || chain.index == 0) && header.session_id != session.id {
            return Err("an encrypted message contains another SessionId");
        }
    }
    match header.command {
        Command::Cancel => {
            cancel(connection, chain, &header, message);
            return Ok(None);
        }
        // After another request it is answered, as Windows does, because the earlier requests have been executed.
        Command::Unknown(_) | Command::ServerToClient if chain.index == 0 => {
            return Err("3.3.5.2.6: unknown command");
        }
        // 3.3.5.2.2; only once (3.3.5.4); in a compound the preauthentication hash would be ambiguous.
        Command::Negotiate if connection.is_negotiated() => return Err("3.3.5.4: a second NEGOTIATE"),
        Command::Negotiate if !chain.alone() => return Err("NEGOTIATE in a compound"),
        Command::Negotiate => {}
        _ if !connection.is_negotiated() => return Err("3.3.5.2.2: a request before NEGOTIATE"),
        _ => {}
    }
    if message.len() > MAX_CONTROL_BYTES && !carries_payload(header.command) {
        return Err("3.3.5.2: the request is too long for its command");
    }
    let charge = connection.charge(&header);
    if !connection.take_credits(header.message_id, charge) {
        return Err(WRONG_MESSAGE_ID);
    }
    let mut step = Step {
        sign: None,
        hash: None,
        session_id: header.session_id,
        id: header.id,
        async_id: None,
        subject: Subject::NONE,
        written: (0, false),
        concerned: Concerned { session_id: header.session_id, ..Concerned::default() },
    };
    let mut answer = carry_out(connection, chain, &header, message, related, &mut step).await?;
    if let Ok(reply) = &mut answer
        && reply.is_long()
        && step.hash.is_none()
    {
        Box::pin(connection.settle_in(reply)).await;
    }
    meter::answered(connection.class, step.subject, header.command, started, &answer, step.written);
    *concerned = step.concerned;
    recorder::answered(|| connection.details(*concerned));
    let status = match &answer {
        Ok(reply) => reply.status,
        Err(failure) => failure.status,
    };
    let mut reply = header.reply(status, 0);
    (reply.session_id, reply.id) = (step.session_id, step.id);
    match step.async_id {
        // Its credits went out with the interim response.
        Some(id) => reply.id = Id::Async(id),
        None => reply.credits = connection.grant(charge, wanted(&header, charge, status)),
    }
    Ok(Some(Answered { header: reply, answer, sign: step.sign, hash: step.hash }))
}

/// The credits to grant: as many as the request asks for, but before the log-on no more than it had.
fn wanted(header: &Header, charge: u16, status: NtStatus) -> u16 {
    match header.command == Command::SessionSetup && status != NtStatus::SUCCESS {
        true => header.credits.min(charge),
        false => header.credits,
    }
}

/// The result of a request besides its answer.
struct Step {
    sign: Option<Arc<SigningKey>>,
    hash: Option<Rc<std::cell::RefCell<crypto::Preauth>>>,
    session_id: u64,
    id: Id,
    async_id: Option<u64>,
    subject: Subject,
    /// The payload of a WRITE, and whether it came by RDMA.
    written: (u32, bool),
    concerned: Concerned,
}

async fn carry_out(
    connection: &Rc<Connection>,
    chain: &mut Chain,
    header: &Header,
    mut message: Bytes,
    related: bool,
    step: &mut Step,
) -> Result<Answer, Reason> {
    // 3.3.5.2.7.2: a related request must follow another one. In a compound of both styles each request is taken
    // literally, as Windows does.
    if related && chain.index == 0 {
        return fail(NtStatus::INVALID_PARAMETER);
    }
    if !related {
        chain.session_id = header.session_id;
        chain.tree_id = header.tree_id();
        (chain.file_id, chain.failed) = (None, None);
    }
    (step.session_id, step.id) = (chain.session_id, chain.tree_id.map_or(header.id, Id::tree));
    if header.command == Command::SessionSetup {
        return set_up(connection, chain, header, &message, step).await;
    }
    let incoming = Incoming { connection, header, message: &mut message };
    let verified = match incoming.verify(chain.session_id, chain.sealed.as_ref()) {
        Ok(verified) => verified,
        Err(refused) => {
            if refused == Refused::NoSession {
                step.sign = connection.proven(chain.session_id, &message);
            }
            return fail(refused.tell(connection));
        }
    };
    step.sign = verified.signed().cloned();
    if step.sign.is_some() {
        recorder::spent_on(Hop::Decode, verified.message().len());
    }
    match header.command {
        Command::Negotiate => {
            let message = verified.message();
            let answer = negotiate::smb2(connection, header, message);
            if answer.is_ok() && connection.dialect() == Dialect::V3_1_1 {
                connection.preauth.borrow_mut().update(message);
                step.hash = Some(connection.preauth.clone());
            }
            return Ok(answer);
        }
        Command::Echo => {
            return Ok(echo::Request::parse(verified.message())
                .map_err(|_| NtStatus::INVALID_PARAMETER.into())
                .map(|_| {
                    let mut reply = Reply::new();
                    echo::Response.emit(&mut reply.message);
                    reply
                }));
        }
        _ => {}
    }
    let request = match verified.in_session() {
        Ok(request) => request,
        Err(refused) => {
            // 3.3.5.2.7.2: a request that relates to one without a session has none either.
            let none = refused == Refused::NoSession && std::mem::take(&mut chain.session_id) == 0;
            return fail(match related && none {
                true => NtStatus::INVALID_PARAMETER,
                false => refused.tell(connection),
            });
        }
    };
    match header.command {
        Command::Logoff => Ok(Box::pin(session_setup::logoff(&request)).await),
        Command::TreeConnect => {
            if connection.dialect() == Dialect::V3_1_1 && request.protection() == Protection::Not {
                return Err("3.3.5.7: TREE_CONNECT is neither signed nor encrypted");
            }
            chain.tree_id = None;
            Ok(tree::connect(&request).await.map(|(id, reply)| {
                chain.tree_id = Some(id);
                step.id = Id::tree(id);
                reply
            }))
        }
        Command::TreeDisconnect => match request.in_tree(chain.tree_id) {
            Ok(admitted) => Ok(Box::pin(tree::disconnect(&admitted)).await),
            Err(refused) => fail(refused.tell(connection)),
        },
        command => operation(chain, command, related, request, step).await,
    }
}

/// SESSION_SETUP finds its session, and the key that proves it, differently from all other commands.
async fn set_up(
    connection: &Rc<Connection>,
    chain: &Chain,
    header: &Header,
    message: &Bytes,
    step: &mut Step,
) -> Result<Answer, Reason> {
    // In a compound the preauthentication hash would be ambiguous.
    if !chain.alone() {
        return fail(NtStatus::INVALID_PARAMETER);
    }
    // Boxed, like everything rare here, to keep a READ's future small.
    let sealed = chain.sealed.is_some();
    let leg = Box::pin(session_setup::session_setup(connection, sealed, header, message)).await;
    (step.session_id, step.sign, step.hash) = (leg.session_id, leg.sign, leg.hash);
    Ok(leg.answer)
}

/// The operation's context, if the request may run at this position.
#[inline(always)]
fn context(
    chain: &Chain,
    command: Command,
    related: bool,
    request: InSession<'_>,
) -> Result<OpContext, NtStatus> {
    if matches!(command, Command::Unknown(_) | Command::ServerToClient) {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    if related && command != Command::Create && chain.file_id.is_none() {
        // 3.3.5.2.7.2. If an operation on an open file fails, the file stays open, and a CLOSE after it is executed.
        return Err(chain.failed.unwrap_or(NtStatus::INVALID_HANDLE));
    }
    if command == Command::ChangeNotify && !chain.last {
        // 3.3.5.2.7: a request that may wait for others can be refused if more requests follow; Windows refuses it this
        // way.
        return Err(NtStatus::INTERNAL_ERROR);
    }
    let connection = request.connection();
    let admitted = request.in_tree(chain.tree_id).map_err(|refused| refused.tell(connection))?;
    Ok(OpContext::new(admitted, chain.file_id, chain.last).leaving_its_buffer())
}

async fn operation(
    chain: &mut Chain,
    command: Command,
    related: bool,
    request: InSession<'_>,
    step: &mut Step,
) -> Result<Answer, Reason> {
    let cx = match context(chain, command, related, request) {
        Ok(cx) => cx,
        Err(status) => return fail(status),
    };
    let connection = cx.connection();
    recorder::is(meter::what(connection.class, command, meter::subject(cx.tree())));
    let answer = recorder::described(ops::dispatch(&cx), || cx.details()).await;
    step.concerned = cx.concerned();
    if command == Command::Create && cx.session().is_ended() {
        // The session ended while this ran; nobody else closes what was opened since.
        Box::pin(cx.session().opens.end_all()).await;
    }
    chain.file_id = cx.file_id.get();
    if let (Command::Create, Err(failure)) = (command, &answer) {
        (chain.file_id, chain.failed) = (None, Some(failure.status));
    }
    step.async_id = cx.async_id.get();
    (step.subject, step.written) = (meter::subject(cx.tree()), cx.written.get());
    Ok(answer)
}

fn fail(status: NtStatus) -> Result<Answer, Reason> {
    Ok(Err(Failure::from(status)))
}

/// 3.3.5.16: no answer, no credits, and no failure.
fn cancel(connection: &Rc<Connection>, chain: &Chain, header: &Header, mut message: Bytes) {
    let incoming = Incoming { connection, header, message: &mut message };
    match incoming.verify(header.session_id, chain.sealed.as_ref()) {
        Ok(verified) => {
            if let Ok(request) = verified.in_session() {
                // Our AsyncIds are MessageIds.
                let id = header.async_id().unwrap_or(header.message_id);
                connection.waiting.cancel(id, request.session().id);
            }
        }
        Err(refused) => {
            refused.tell(connection);
        }
    }
}

/// Commands whose requests may be long (3.3.5.2).
fn carries_payload(command: Command) -> bool {
    use Command::{Ioctl, QueryDirectory, QueryInfo, Read, SetInfo, Write};
    matches!(command, Read | Write | Ioctl | QueryDirectory | QueryInfo | SetInfo)
}
