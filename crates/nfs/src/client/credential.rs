//! Who calls.

use weft_wire::rpc::{self, AuthSys, Flavor};

use super::Error;
use super::gss::Ticket;

/// How the server learns who calls.
#[derive(Clone, Debug)]
pub enum Credential {
    /// Not at all: AUTH_NONE.
    None,
    /// By ids that it has to believe: AUTH_SYS.
    Sys(AuthSys),
    /// By a Kerberos ticket: RPCSEC_GSS.
    Ticket(Ticket),
}

/// The security flavors that a server accepts for an export, best first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offered(pub Vec<Flavor>);

impl std::fmt::Display for Offered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<String> = self.0.iter().map(Flavor::to_string).collect();
        f.write_str(&names.join(", "))
    }
}

impl Credential {
    /// The credential for programs that take no tickets (RFC 2623 2.7: MOUNT).
    pub(super) fn claimed(&self) -> Credential {
        match self {
            Credential::Ticket(ticket) => Credential::Sys(ticket.claims().clone()),
            claimed => claimed.clone(),
        }
    }

    /// The credential as every call contains it; `Err` for a ticket, by which each call is signed anew.
    pub(super) fn constant(&self) -> Result<rpc::Credential, &Ticket> {
        match self {
            Credential::None => Ok(rpc::Credential::None),
            Credential::Sys(sys) => Ok(rpc::Credential::Sys(sys.clone())),
            Credential::Ticket(ticket) => Err(ticket),
        }
    }

    /// The ticket, if there is one.
    pub(super) fn ticket(&self) -> Option<&Ticket> {
        match self {
            Credential::Ticket(ticket) => Some(ticket),
            Credential::None | Credential::Sys(_) => None,
        }
    }

    /// Checks that an export with these flavors accepts calls with this credential. A server may tell no flavors, and some
    /// accept AUTH_NONE where they tell AUTH_SYS, so ids are only held against tickets.
    pub(super) fn check(&self, flavors: Vec<Flavor>) -> Result<(), Error> {
        let accepts = match self {
            Credential::Ticket(ticket) => flavors.contains(&ticket.flavor()),
            Credential::None | Credential::Sys(_) => flavors.iter().any(|flavor| !flavor.is_kerberos()),
        };
        if accepts || flavors.is_empty() { Ok(()) } else { Err(Error::Flavors(Offered(flavors))) }
    }
}
