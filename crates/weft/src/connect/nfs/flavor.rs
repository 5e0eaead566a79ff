//! The security flavor of a mount: the one that the user names, or one that the export accepts.
//!
//! Servers are first told Unix ids, which most exports accept. An export that accepts only tickets says so, and is then
//! mounted with the first of its flavors, as mount(8) does. With `--kerberos` the export is asked before.

use rustix::process::{getgid, getuid};
use weft_nfs::client::{AuthSys, Credential, Error, Flavor, Offered, Service, Ticket};

use crate::Failure;
use crate::args::Connect;
use crate::url::{Security, Url};

/// The flavor of a mount.
#[derive(Clone)]
pub(super) enum Chosen {
    /// Unix ids.
    Sys,
    /// A Kerberos ticket.
    Ticket(Ticket),
}

impl Chosen {
    fn of(security: Security, host: &str) -> Chosen {
        let service = match security {
            Security::Sys => return Chosen::Sys,
            Security::Krb5 => Service::None,
            Security::Krb5i => Service::Integrity,
            Security::Krb5p => Service::Privacy,
        };
        Chosen::Ticket(Ticket::new(host, service, own_ids()))
    }

    /// The credential of each call.
    pub(super) fn credential(&self) -> Credential {
        match self {
            Chosen::Sys => Credential::Sys(own_ids()),
            Chosen::Ticket(ticket) => Credential::Ticket(ticket.clone()),
        }
    }

    /// How the ticket protects calls.
    pub(super) fn service(&self) -> Option<Service> {
        match self {
            Chosen::Sys => None,
            Chosen::Ticket(ticket) => Some(ticket.service()),
        }
    }

    /// ", krb5p as alice@EXAMPLE.ORG"; empty for Unix ids.
    pub(super) fn shown(&self) -> String {
        let Chosen::Ticket(ticket) = self else { return String::new() };
        match ticket.principal() {
            Some(principal) => format!(", {} as {principal}", name(ticket.service())),
            None => format!(", {}", name(ticket.service())),
        }
    }
}

/// As mount's option `sec=` names it.
pub(super) fn name(service: Service) -> &'static str {
    match service {
        Service::None => "krb5",
        Service::Integrity => "krb5i",
        Service::Privacy => "krb5p",
    }
}

/// The ids of the user who runs weft.
fn own_ids() -> AuthSys {
    let host = bytes::Bytes::copy_from_slice(rustix::system::uname().nodename().to_bytes());
    AuthSys::new(host, getuid().as_raw(), getgid().as_raw())
}

/// Unix ids, for what takes no tickets.
pub(super) fn ids() -> Credential {
    Chosen::Sys.credential()
}

/// A ticket, for what may be asked with any flavor. A server may refuse Unix ids from a port that every user can bind.
pub(super) fn any_ticket(url: &Url) -> Credential {
    Chosen::of(Security::Krb5, &url.host).credential()
}

/// A mount, its flavor, and why it has that, if there was a choice.
pub(super) type Mounted<T> = (T, Chosen, &'static str);

/// Mounts by `attempt`. `offered` asks for the flavors that the export accepts.
pub(super) async fn mount<T>(
    url: &Url,
    options: &Connect,
    offered: impl AsyncFn() -> Result<Vec<Flavor>, Failure>,
    attempt: impl AsyncFn(&Chosen) -> Result<T, Failure>,
) -> Result<Mounted<T>, Failure> {
    let with = async |chosen: Chosen, why| Ok((attempt(&chosen).await?, chosen, why));
    if let Some(security) = url.security {
        return with(Chosen::of(security, &url.host), "").await;
    }
    if options.kerberos {
        let security = first(url, &Offered(offered().await?))?;
        return with(Chosen::of(security, &url.host), "").await;
    }
    match with(Chosen::Sys, "").await {
        Err(e) => match e.downcast_ref::<Error>() {
            Some(Error::Flavors(offered)) => {
                let security = first(url, offered)?;
                with(Chosen::of(security, &url.host), ", because the export accepts no Unix ids").await
            }
            _ => Err(e),
        },
        mounted => mounted,
    }
}

/// The first flavor of Kerberos that the export accepts; a server that tells none may accept any.
fn first(url: &Url, offered: &Offered) -> Result<Security, Failure> {
    let known = |flavor: &Flavor| match *flavor {
        Flavor::KRB5 => Some(Security::Krb5),
        Flavor::KRB5I => Some(Security::Krb5i),
        Flavor::KRB5P => Some(Security::Krb5p),
        _ => None,
    };
    match offered.0.iter().find_map(known) {
        Some(security) => Ok(security),
        None if offered.0.is_empty() => Ok(Security::Krb5),
        None => Err(format!(
            "export /{} on {} accepts no Kerberos tickets, but {offered}: omit --kerberos",
            url.share, url.host
        )
        .into()),
    }
}

/// What to type when an export does not accept the flavor of the URL.
pub(super) fn refused(url: &Url, offered: &Offered) -> String {
    let wanted = url.security.map_or("Unix ids", Security::name);
    let advice = match first(url, offered) {
        Ok(security) if !offered.0.is_empty() => {
            let other = Url { security: Some(security), ..url.clone() };
            format!("; write {}", crate::out::shell_word(other.to_string()))
        }
        _ => "; omit sec= from the URL".to_owned(),
    };
    format!("it does not accept {wanted}, but {offered}{advice}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_gets_the_first_flavor_of_kerberos_that_it_accepts() {
        let url = Url::parse("nfs://nas/data/x").unwrap().unwrap();
        let first = |flavors: &[Flavor]| first(&url, &Offered(flavors.to_vec())).map_err(|e| e.to_string());
        assert_eq!(first(&[Flavor::SYS, Flavor::KRB5I, Flavor::KRB5P]), Ok(Security::Krb5i));
        assert_eq!(first(&[]), Ok(Security::Krb5), "the server tells none");
        let none = first(&[Flavor::SYS, Flavor::NONE]).unwrap_err();
        assert_eq!(none, "export /data on nas accepts no Kerberos tickets, but sys, none: omit --kerberos");
    }

    #[test]
    fn a_flavor_that_is_not_accepted_is_named_with_one_that_is() {
        let url = Url::parse("nfs://nas/data/x?sec=krb5p").unwrap().unwrap();
        let says = |flavors: &[Flavor]| refused(&url, &Offered(flavors.to_vec()));
        assert_eq!(
            says(&[Flavor::SYS, Flavor::KRB5I]),
            "it does not accept krb5p, but sys, krb5i; write 'nfs://nas/data/x?sec=krb5i'"
        );
        assert_eq!(says(&[Flavor::SYS]), "it does not accept krb5p, but sys; omit sec= from the URL");
    }
}
