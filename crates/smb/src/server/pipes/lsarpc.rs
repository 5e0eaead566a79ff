//! The local security authority: translates SIDs and names, for clients that show or set permissions.
//!
//! Spec: [MS-LSAT] 3.1.4, [MS-LSAD] 3.1.4. There are no trusted domains, and rights cannot be changed.

use weft_machine::nss::Query;
use weft_wire::dcerpc::FaultStatus;
use weft_wire::dcerpc::lsarpc::{self, Policy};
use weft_wire::dcerpc::ndr::Handle;
use weft_wire::smb2::NtStatus;

use super::caller::Caller;
use super::handles::{Handles, Object};
use crate::server::accounts::Accounts;

/// The names and ids of the system that a call needs.
pub(super) fn queries(accounts: &Accounts, opnum: u16, stub: &[u8]) -> Vec<Query> {
    match opnum {
        lsarpc::LOOKUP_NAMES | lsarpc::LOOKUP_NAMES2 | lsarpc::LOOKUP_NAMES3 => {
            let names = lsarpc::parse_lookup_names(stub).map_or_else(|_| Vec::new(), |(_, names)| names);
            names.iter().flat_map(|name| accounts.queries_of_name(name)).collect()
        }
        lsarpc::LOOKUP_SIDS | lsarpc::LOOKUP_SIDS2 => {
            let sids = lsarpc::parse_lookup_sids(stub).map_or_else(|_| Vec::new(), |(_, sids)| sids);
            sids.iter().filter_map(Accounts::query_of_sid).collect()
        }
        _ => Vec::new(),
    }
}

pub(super) fn call(
    caller: &Caller<'_>,
    handles: &mut Handles,
    opnum: u16,
    stub: &[u8],
) -> Result<Vec<u8>, FaultStatus> {
    let directory = caller.server.directory();
    let (accounts, system) = (&directory.accounts, &directory.system);
    let policy = |handles: &Handles, handle| match handles.find(handle)? {
        Object::Policy => Ok(()),
        _ => Err(FaultStatus::CONTEXT_MISMATCH),
    };
    Ok(match opnum {
        // The caller and the requested access make no difference: every user may look names up.
        lsarpc::OPEN_POLICY | lsarpc::OPEN_POLICY2 => {
            lsarpc::emit_handle(handles.open(Object::Policy)?, NtStatus::SUCCESS)
        }
        lsarpc::CLOSE => {
            handles.close(weft_wire::dcerpc::ndr::Reader::new(stub).handle()?)?;
            lsarpc::emit_handle(Handle::default(), NtStatus::SUCCESS)
        }
        lsarpc::QUERY_INFORMATION_POLICY | lsarpc::QUERY_INFORMATION_POLICY2 => {
            let (handle, class) = lsarpc::parse_query_policy(stub)?;
            policy(handles, handle)?;
            lsarpc::emit_policy(match class {
                3 => Ok(Policy::PrimaryDomain("WORKGROUP")),
                5 => Ok(Policy::AccountDomain(&accounts.host)),
                6 => Ok(Policy::ServerRole),
                12 => Ok(Policy::DnsDomain("WORKGROUP")),
                _ => Err(NtStatus::INVALID_PARAMETER),
            })
        }
        lsarpc::LOOKUP_NAMES | lsarpc::LOOKUP_NAMES2 | lsarpc::LOOKUP_NAMES3 => {
            let (handle, names) = lsarpc::parse_lookup_names(stub)?;
            policy(handles, handle)?;
            let mut domains = Vec::new();
            let all: Vec<_> = names.iter().map(|name| accounts.of_name(name, system, &mut domains)).collect();
            lsarpc::emit_sids(opnum, &domains, &all)
        }
        lsarpc::LOOKUP_SIDS | lsarpc::LOOKUP_SIDS2 => {
            let (handle, sids) = lsarpc::parse_lookup_sids(stub)?;
            policy(handles, handle)?;
            let mut domains = Vec::new();
            let all: Vec<_> = sids.iter().map(|sid| accounts.of_sid(sid, system, &mut domains)).collect();
            lsarpc::emit_names(opnum, &domains, &all)
        }
        lsarpc::ENUMERATE_ACCOUNT_RIGHTS => {
            let (handle, _) = lsarpc::parse_account_rights(stub)?;
            policy(handles, handle)?;
            lsarpc::emit_no_rights()
        }
        lsarpc::GET_USER_NAME => {
            let domain = lsarpc::parse_get_user_name(stub)?.then_some(accounts.host.name.as_str());
            lsarpc::emit_user_name(&caller.session.user, domain)
        }
        _ => return Err(FaultStatus::OPERATION_OUT_OF_RANGE),
    })
}
