//! The handshake as a state machine: options in, replies out, until an export is chosen.
//!
//! See doc/proto.md "Newstyle negotiation", "Option types", "Metadata querying" and "TLS support" (NOTLS or FORCEDTLS
//! mode). It holds what was agreed so far; `server` reads and writes.

use weft_machine::LogLimit;
use weft_wire::nbd::Malformed;
use weft_wire::nbd::handshake::{
    BASE_ALLOCATION, CLIENT_FLAGS_LEN, Choice, Chosen, ClientFlags, FIXED_NEWSTYLE, GREETING_LEN, Greeting,
    INFO_BLOCK_SIZE, INFO_DESCRIPTION, INFO_NAME, Info, NO_ZEROES, OptionCode, Queries, Refusal, Reply,
    Wanted, transmission_flags as flag,
};

use crate::resources::{Export, Limits};

/// The id of `base:allocation` in block status replies.
pub(crate) const ALLOCATION_ID: u32 = 1;

/// A handshake.
#[derive(Debug)]
pub struct Negotiation<'a> {
    exports: &'a [Export],
    request_bytes: u32,
    client: ClientFlags,
    tls: Security,
    structured: bool,
    /// The export for which `base:allocation` was chosen.
    context_of: Option<usize>,
}

/// "TLS support": the mode, and its progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Security {
    /// NOTLS.
    None,
    /// FORCEDTLS, before TLS: only STARTTLS and ABORT are accepted.
    Wanted,
    /// Under TLS.
    Begun,
}

/// The result of the handshake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Agreed<'a> {
    /// The export to serve.
    pub export: &'a Export,
    /// Limits how often the log reports its failures.
    pub failures: &'a LogLimit,
    /// READs are answered with structured replies.
    pub structured: bool,
    /// BLOCK_STATUS is available.
    pub context: bool,
}

/// What to do after an option.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Send these bytes, then receive the next option.
    Continue(Vec<u8>),
    /// Send these bytes, then start TLS, then receive the next option.
    StartTls(Vec<u8>),
    /// Send these bytes, then receive requests.
    Start {
        /// The bytes.
        replies: Vec<u8>,
        /// Index of the chosen export.
        export: usize,
        /// READs are answered with structured replies.
        structured: bool,
        /// BLOCK_STATUS is available.
        context: bool,
    },
    /// Send these bytes, if any, then end the connection.
    End(Vec<u8>),
}

impl<'a> Negotiation<'a> {
    /// A handshake for these exports, with mandatory TLS or without.
    pub fn new(exports: &'a [Export], limits: &Limits, tls: bool) -> Negotiation<'a> {
        let tls = if tls { Security::Wanted } else { Security::None };
        let client = ClientFlags { fixed_newstyle: false, no_zeroes: false };
        let request_bytes = limits.request_bytes;
        Negotiation { exports, request_bytes, client, tls, structured: false, context_of: None }
    }

    /// The server's greeting.
    pub fn greeting() -> [u8; GREETING_LEN] {
        Greeting { flags: FIXED_NEWSTYLE | NO_ZEROES }.emit()
    }

    /// The client's flags, in reply to the greeting.
    pub fn client_flags(&mut self, bytes: &[u8; CLIENT_FLAGS_LEN]) -> Result<(), Malformed> {
        self.client = ClientFlags::parse(bytes)?;
        Ok(())
    }

    /// An option with more data than is accepted.
    pub fn too_long(&self, code: OptionCode) -> Step {
        if code == OptionCode::EXPORT_NAME || !self.client.fixed_newstyle {
            // This option has no error reply.
            return Step::End(Vec::new());
        }
        refuse(code, Refusal::TooBig, "an option this long is not read")
    }

    /// An option with all of its data.
    pub fn option(&mut self, code: OptionCode, data: &[u8]) -> Step {
        // "Newstyle negotiation": without the fixed kind, EXPORT_NAME is the only option, and no refusal is possible.
        if !self.client.fixed_newstyle && code != OptionCode::EXPORT_NAME {
            return Step::End(Vec::new());
        }
        if self.tls == Security::Wanted && !matches!(code, OptionCode::STARTTLS | OptionCode::ABORT) {
            // "FORCEDTLS mode": EXPORT_NAME has no error reply, so it ends the session.
            return match code {
                OptionCode::EXPORT_NAME => Step::End(Vec::new()),
                code => refuse(code, Refusal::TlsRequired, "this server speaks under TLS only"),
            };
        }
        let choice = match Choice::parse(code, data) {
            Ok(choice) => choice,
            Err(_) if code == OptionCode::EXPORT_NAME => return Step::End(Vec::new()),
            Err(e) => return refuse(code, Refusal::Invalid, &e.to_string()),
        };
        match choice {
            Choice::ExportName(name) => self.export_name(&name),
            Choice::Abort => Step::End(Reply::Ack.emit(code)),
            Choice::List => {
                let exports = self.exports.iter().map(|export| Reply::Server(export.name.clone()));
                answer(code, exports.chain([Reply::Ack]))
            }
            Choice::StartTls => match self.tls {
                // "NOTLS mode".
                Security::None => refuse(code, Refusal::Policy, "this server has no TLS"),
                Security::Wanted => {
                    self.tls = Security::Begun;
                    Step::StartTls(Reply::Ack.emit(code))
                }
                Security::Begun => refuse(code, Refusal::Invalid, "TLS is already active"),
            },
            Choice::Info(wanted) => self.info(code, &wanted),
            Choice::Go(wanted) => match self.info(code, &wanted) {
                Step::Continue(replies) => match self.find(&wanted.export) {
                    Some((number, _)) => self.start(replies, number),
                    None => Step::Continue(replies),
                },
                other => other,
            },
            Choice::StructuredReply => {
                self.structured = true;
                answer(code, [Reply::Ack])
            }
            Choice::ListMetaContext(queries) => self.contexts(code, &queries, false),
            Choice::SetMetaContext(queries) => self.contexts(code, &queries, true),
            Choice::Unknown(_) => refuse(code, Refusal::Unsupported, ""),
        }
    }

    /// The export of this name; the empty name stands for the only export, if there is just one.
    fn find(&self, name: &str) -> Option<(usize, &'a Export)> {
        match self.exports {
            [only] if name.is_empty() => Some((0, only)),
            all => all.iter().enumerate().find(|(_, export)| export.name == name),
        }
    }

    /// The transmission flags of an export. CAN_MULTI_CONN is justified: every connection works on the same file or
    /// device, so a flush on one covers what was answered on others.
    fn flags(&self, export: &Export) -> u16 {
        let mut flags =
            flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::CAN_MULTI_CONN | flag::SEND_CACHE;
        flags |= match export.read_only {
            true => flag::READ_ONLY,
            false => flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO,
        };
        if self.structured { flags | flag::SEND_DF } else { flags }
    }

    fn start(&self, replies: Vec<u8>, export: usize) -> Step {
        // Contexts chosen for another export do not count.
        let context = self.structured && self.context_of == Some(export);
        Step::Start { replies, export, structured: self.structured, context }
    }

    fn export_name(&self, name: &str) -> Step {
        // "NBD_OPT_EXPORT_NAME": an unknown export ends the session.
        let Some((number, export)) = self.find(name) else { return Step::End(Vec::new()) };
        let (size, flags) = (export.block.geometry().size, self.flags(export));
        self.start(Chosen { size, flags }.emit(self.client.no_zeroes), number)
    }

    fn info(&self, code: OptionCode, wanted: &Wanted) -> Step {
        let Some((_, export)) = self.find(&wanted.export) else {
            return refuse(code, Refusal::UnknownExport, "there is no such volume here");
        };
        let geometry = export.block.geometry();
        let mut infos = vec![Info::Export { size: geometry.size, flags: self.flags(export) }];
        // Each once, however often it was requested.
        for (number, info) in [
            (INFO_NAME, Info::Name(export.name.clone())),
            (INFO_DESCRIPTION, Info::Description(export.description.clone())),
            (
                INFO_BLOCK_SIZE,
                Info::BlockSize { minimum: 1, preferred: geometry.preferred, maximum: self.request_bytes },
            ),
        ] {
            if wanted.infos.contains(&number) {
                infos.push(info);
            }
        }
        answer(code, infos.into_iter().map(Reply::Info).chain([Reply::Ack]))
    }

    fn contexts(&mut self, code: OptionCode, queries: &Queries, set: bool) -> Step {
        if !self.structured {
            return refuse(code, Refusal::Invalid, "metadata contexts need structured replies");
        }
        let Some((number, _)) = self.find(&queries.export) else {
            return refuse(code, Refusal::UnknownExport, "there is no such volume here");
        };
        // In a list, no query means all contexts, and a namespace means those in it; in a set, only full names count.
        let matches = |query: &String| query == BASE_ALLOCATION || (!set && query == "base:");
        let chosen = queries.queries.iter().any(matches) || (!set && queries.queries.is_empty());
        if set {
            self.context_of = chosen.then_some(number);
        }
        let id = if set { ALLOCATION_ID } else { 0 };
        let context = chosen.then(|| Reply::MetaContext { id, name: BASE_ALLOCATION.into() });
        answer(code, context.into_iter().chain([Reply::Ack]))
    }
}

fn answer(code: OptionCode, replies: impl IntoIterator<Item = Reply>) -> Step {
    Step::Continue(replies.into_iter().flat_map(|reply| reply.emit(code)).collect())
}

fn refuse(code: OptionCode, refusal: Refusal, why: &str) -> Step {
    answer(code, [Reply::Refused(refusal, why.to_owned())])
}
