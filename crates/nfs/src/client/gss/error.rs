//! Why a Kerberos ticket does not serve, and what mends that.

use weft_kerberos::Cause;
use weft_kerberos::Error::Gss;
use weft_wire::rpc::AuthStat;

/// See the module.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TicketError {
    /// There is no ticket for the service, or the library cannot use it.
    #[error("{}", ours(.host, .error))]
    Ours {
        /// The server, as the caller named it.
        host: String,
        /// What the library says.
        error: weft_kerberos::Error,
    },
    /// The server refuses the ticket.
    #[error("the server refuses the ticket for nfs/{host}: {}", theirs(.host, *.major, *.minor))]
    Refused {
        /// The server, as the caller named it.
        host: String,
        /// The status of the server's GSS-API (RFC 2744 3.9.1).
        major: u32,
        /// The status of its mechanism.
        minor: u32,
    },
    /// The server does not speak RPCSEC_GSS.
    #[error(
        "the server takes no Kerberos tickets ({0}); with ?sec=sys in the URL it is told Unix ids instead"
    )]
    NotTaken(AuthStat),
    /// The credential cache has another user's tickets than before.
    #[error(
        "the Kerberos tickets are now {now}'s, and the export was mounted as {was}: get a ticket of {was} with kinit"
    )]
    Changed {
        /// As whom the export was mounted.
        was: String,
        /// Whose tickets the cache has now.
        now: String,
    },
    /// The server's part of the exchange is not what the specification says; it may not be the server's.
    #[error("the server does not prove that it is the service of the ticket: {0}")]
    Unproven(&'static str),
}

fn ours(host: &str, error: &weft_kerberos::Error) -> String {
    let cause = if let Gss(failure) = error { failure.cause() } else { Cause::Other };
    match cause {
        Cause::NoTicket => format!("no Kerberos ticket: get one with kinit ({error})"),
        Cause::Expired => format!("the Kerberos ticket has expired: get a new one with kinit ({error})"),
        Cause::UnknownService => format!(
            "the realm has no service nfs/{host}: name the server as in the key of its keytab, not by address or alias ({error})"
        ),
        Cause::Clock => {
            format!("this host's clock and the KDC's differ too much for Kerberos: set both right ({error})")
        }
        Cause::NoKdc => {
            format!("the realm's KDC is not reached: look at /etc/krb5.conf, or KRB5_CONFIG ({error})")
        }
        Cause::WrongKey | Cause::Other => {
            format!("Kerberos with nfs/{host} failed: {error} (klist shows your tickets)")
        }
    }
}

fn theirs(host: &str, major: u32, minor: u32) -> String {
    match Cause::of(major, minor) {
        Cause::Clock => "its clock and this host's differ too much for Kerberos: set both right".to_owned(),
        Cause::Expired => "it has expired: get a new one with kinit, and check both clocks".to_owned(),
        Cause::WrongKey | Cause::NoTicket => format!(
            "its keytab does not have the key: on the server, `klist -k` shows the keys; kadmin's `ktadd nfs/{host}` adds it"
        ),
        Cause::UnknownService | Cause::NoKdc | Cause::Other => {
            format!("its log says why (GSS-API: {major:#x}, {minor})")
        }
    }
}
