//! As whom the files of a share are used: found once, when its user connects to it.
//!
//! Only the files of folders have a kernel that judges; for the others the server decides, whoever connects. A user of
//! ours who has the name of an account of the system acts as that account, with the groups that it had at log-on.

use std::sync::Arc;

use weft_machine::credentials::Credentials;
use weft_machine::{LogLimit, rt};
use weft_store::access::posix::Process;
use weft_store::rules::ActsAs;
use weft_store::vfs::{Caller, Share};

use super::directory::{Directory, Who};

/// A user without an account of the system, on a share whose files are used as its users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoAccount;

/// As whom a user uses the files of a share.
pub(super) fn caller(directory: &Directory, who: Who<'_>, share: &Share) -> Result<Caller, NoAccount> {
    match &share.rules.acts {
        _ if !share.vfs.may_act() => Ok(Caller::Server),
        ActsAs::Server => Ok(Caller::Server),
        ActsAs::User(user) => Ok(Caller::User(user.clone())),
        ActsAs::Caller => match who.account {
            // The server's own rights are the user's.
            Some(account) if account.uid == Process::own().uid => Ok(Caller::Server),
            Some(account) => {
                let user = Credentials::new(account.uid, account.gid, &account.groups).ok_or(NoAccount)?;
                Ok(Caller::User(Arc::new(user)))
            }
            None if directory.is_server_itself(who) => Ok(Caller::Server),
            None => Err(NoAccount),
        },
    }
}

impl NoAccount {
    /// Logs that the user is refused, and what to do about it.
    pub(super) fn tell(self, user: &str, share: &str, peer: &str) {
        static REFUSED: LogLimit = LogLimit::new();
        if let Some(left_out) = REFUSED.pass(rt::now()) {
            tracing::warn!(
                user,
                share,
                peer,
                "refused: the files of the share are used as its users, but {user} has no account of the system. To give access: \
                 useradd {user}, and log on again; or in the configuration file shares.{share}.force_user = \"NAME\", for every user of the \
                 share; or smb.act_as_callers = false{left_out}"
            );
        }
    }
}
