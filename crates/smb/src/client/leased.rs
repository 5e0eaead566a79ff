//! Leases that their owner looks after: it learns of each break, and acknowledges it once it has given up what it cached.
//!
//! Spec: [MS-SMB2] 3.2.4.3.8 (requesting), 3.2.5.19.2 (breaks), 2.2.24.2 (acknowledging). The client caches nothing
//! under such a lease; that is up to the owner.

use std::future::poll_fn;
use std::rc::Rc;

use weft_machine::random;
use weft_wire::smb2::create::{self, OplockLevel};
use weft_wire::smb2::create_context::{LeaseState, ResponseContext};
use weft_wire::smb2::oplock_break::{Request, Response};
use weft_wire::smb2::{Command, Guid};

use super::error::Error;
use super::file::File;
use super::leases::{Breaks, LeaseBreak, Leases};
use super::open_options::OpenOptions;
use super::path::wire_path;
use super::tree::Tree;

/// A lease of one file, as long as the file that it was opened with. Dropping it acknowledges no further breaks.
pub struct Lease {
    key: Guid,
    tree: Tree,
    granted: LeaseState,
    leases: Rc<Leases>,
    breaks: Rc<Breaks>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.leases.leave(&self.key);
    }
}

impl Tree {
    /// Opens or creates a file with a new lease of these rights, of which the server may grant fewer.
    ///
    /// # Errors
    /// As [`Tree::open`].
    pub async fn open_leased(
        &self,
        path: &str,
        options: OpenOptions,
        wanted: LeaseState,
    ) -> Result<(File, Lease), Error> {
        let mut lease = Lease {
            key: random::bytes()?,
            tree: self.clone(),
            granted: LeaseState::NONE,
            leases: self.core().leases.clone(),
            breaks: Rc::default(),
        };
        let mut contexts = vec![self.lease_context(lease.key, wanted)];
        contexts.extend(self.privacy(options));
        let request =
            create::Request { oplock: OplockLevel::LEASE, ..options.request(wire_path(path)?, contexts) };
        let call = self.call(Command::Create, |out| request.emit(out));
        // Entered before the request is sent, because a break may overtake the answer.
        lease.leases.enter_owned(lease.key, self.connect(), lease.breaks.clone());
        let message = self.core().call(call).await?.success()?;
        let response = create::Response::parse(&message)?;
        for context in &response.contexts {
            if let ResponseContext::Lease(granted) = context
                && granted.key == lease.key
            {
                lease.granted = granted.state;
            }
        }
        Ok((self.opened(response, None), lease))
    }
}

impl Lease {
    /// The rights that the server granted with the open.
    pub fn granted(&self) -> LeaseState {
        self.granted
    }

    /// Whether a break has arrived that [`Lease::broken`] has not returned yet.
    pub fn is_broken(&self) -> bool {
        self.breaks.is_any()
    }

    /// The next break. Waits forever if there is none, also when the session has ended.
    pub async fn broken(&self) -> LeaseBreak {
        poll_fn(|cx| self.breaks.poll_next(cx)).await
    }

    /// Answers a break: the owner keeps these rights, at most those that remain.
    ///
    /// # Errors
    /// [`Error::Status`] if the server has already taken the rights, because it was too late or the file is closed.
    pub async fn acknowledge(&self, keep: LeaseState) -> Result<(), Error> {
        let request = Request::Lease { key: self.key, state: keep };
        let call = self.tree.call(Command::OplockBreak, |out| request.emit(out));
        Response::parse(&self.tree.core().call(call).await?.success()?)?;
        Ok(())
    }
}
