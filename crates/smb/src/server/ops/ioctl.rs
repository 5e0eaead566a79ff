//! IOCTL: control codes.
//!
//! Spec: [MS-SMB2] 3.3.5.15. Copies and holes are in `server_copy` and `holes`. Unsupported controls, such as
//! compression, answer the status that 3.3.5.15 or [MS-FSA] 2.1.5.10 names for them.

use weft_store::rights::Right;
use weft_wire::smb2::access::AccessMask;
use weft_wire::smb2::ioctl::{
    CtlCode, Flags, NetworkInterface, Request, Response, ValidateNegotiateRequest, ValidateNegotiateResponse,
};
use weft_wire::smb2::{Dialect, FileId, NtStatus};

use super::control_output::Output;
use super::opens::Open;
use super::{audit, durability, holes, offload, previous, reparse, server_copy, volume};
use crate::server::answer::{Answer, Failure, Reply};
use crate::server::context::OpContext;

/// Size of a VALIDATE_NEGOTIATE_INFO response.
const VALIDATE_LEN: u32 = 24;

pub(crate) async fn ioctl(cx: &OpContext) -> Answer {
    let request = Request::parse(cx.message())?;
    if !request.flags.contains(Flags::IS_FSCTL) {
        return Err(NtStatus::NOT_SUPPORTED.into());
    }
    let most = cx.max_payload();
    if request.input.len() > most as usize
        || request.max_input_response > most
        || request.max_output_response > most
    {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let on_no_file = matches!(
        request.code,
        CtlCode::DFS_GET_REFERRALS
            | CtlCode::DFS_GET_REFERRALS_EX
            | CtlCode::QUERY_NETWORK_INTERFACE_INFO
            | CtlCode::VALIDATE_NEGOTIATE_INFO
            | CtlCode::PIPE_WAIT
            | CtlCode::WEFT_ENDPOINTS
    );
    // Other answers are short whatever output size the client allows: a log-on asks for some, and must not wait for
    // buffers that slow readers hold.
    let room = match request.code {
        CtlCode::QUERY_ALLOCATED_RANGES | CtlCode::SRV_ENUMERATE_SNAPSHOTS | CtlCode::WEFT_EXCHANGE => {
            cx.room(request.max_output_response as usize).await
        }
        _ => None,
    };
    let output = if on_no_file { on_connection(cx, &request)?.into() } else { on_file(cx, &request).await? };
    let Output { status, bytes: output } = output;
    if output.len() > request.max_output_response as usize {
        return Err(NtStatus::BUFFER_TOO_SMALL.into());
    }
    let mut reply = Reply::with_capacity(output.len().saturating_add(48));
    reply.status = status;
    let file = if on_no_file { FileId::RELATED } else { cx.file_id(request.file) };
    Response { code: request.code, file, output: output.into() }.emit(&mut reply.message);
    reply.room = room;
    Ok(reply)
}

/// Controls that concern the connection or the server.
fn on_connection(cx: &OpContext, request: &Request) -> Result<Vec<u8>, Failure> {
    if request.file != FileId::RELATED {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let mut asked = cx.connection().asked.get();
    asked.interfaces |= request.code == CtlCode::QUERY_NETWORK_INTERFACE_INFO;
    asked.endpoints |= request.code == CtlCode::WEFT_ENDPOINTS;
    cx.connection().asked.set(asked);
    match request.code {
        CtlCode::VALIDATE_NEGOTIATE_INFO => validate_negotiate(cx, request),
        CtlCode::QUERY_NETWORK_INTERFACE_INFO => interfaces(cx),
        CtlCode::WEFT_ENDPOINTS => Ok(cx.config().endpoints.clone().into_bytes()),
        // 3.3.5.15.2.
        CtlCode::DFS_GET_REFERRALS | CtlCode::DFS_GET_REFERRALS_EX => {
            let newer = request.code == CtlCode::DFS_GET_REFERRALS_EX;
            let (server, user) = (cx.server(), cx.session().who());
            let may_use = |root: &str| {
                let share = server.shares.named(root);
                share.is_some_and(|share| server.directory().right(user, &share.rules) > Right::None)
            };
            cx.config().offers.dfs.answer(&request.input, newer, request.max_output_response, may_use)
        }
        // There are no pipes on this share.
        _ => Err(NtStatus::OBJECT_NAME_NOT_FOUND.into()),
    }
}

/// 3.3.5.15.12. Any contradiction means that NEGOTIATE was changed in transit: the connection ends without an answer.
fn validate_negotiate(cx: &OpContext, request: &Request) -> Result<Vec<u8>, Failure> {
    let negotiated = cx.connection().negotiated();
    let end = |reason| {
        cx.connection().terminate(reason);
        Failure::from(NtStatus::ACCESS_DENIED)
    };
    if negotiated.dialect == Dialect::V3_1_1 {
        return Err(end("validate negotiate on 3.1.1, which uses preauthentication integrity instead"));
    }
    if request.max_output_response < VALIDATE_LEN {
        return Err(end("validate negotiate without room for the answer"));
    }
    let said =
        ValidateNegotiateRequest::parse(&request.input).map_err(|_| end("malformed validate negotiate"))?;
    // The same list leads to the same dialect.
    let agrees = said.dialects == negotiated.client_dialects
        && said.guid == negotiated.client_guid
        && said.security_mode == negotiated.client_security_mode
        && said.capabilities == negotiated.client_capabilities;
    if !agrees {
        return Err(end("validate negotiate contradicts NEGOTIATE: it was tampered with"));
    }
    let mut output = Vec::with_capacity(VALIDATE_LEN as usize);
    ValidateNegotiateResponse {
        capabilities: negotiated.server_capabilities,
        guid: cx.config().server_guid,
        security_mode: negotiated.server_security_mode,
        dialect: negotiated.dialect,
    }
    .emit(&mut output);
    Ok(output)
}

/// 3.3.5.15.11.
fn interfaces(cx: &OpContext) -> Result<Vec<u8>, Failure> {
    if cx.dialect() < Dialect::V3_0 {
        return Err(NtStatus::NOT_SUPPORTED.into());
    }
    let interfaces: Vec<_> = cx
        .config()
        .interfaces
        .list()
        .into_iter()
        .filter(|interface| interface.index != 0)
        .map(|interface| NetworkInterface {
            index: interface.index,
            rss: interface.rss,
            rdma: interface.rdma,
            link_speed_bps: interface.link_speed_bps,
            addr: interface.addr,
        })
        .collect();
    let mut output = Vec::new();
    NetworkInterface::emit_list(&interfaces, &mut output);
    Ok(output)
}

/// FILE_OBJECTID_BUFFER ([MS-FSCC] 2.1.3.1): an id that follows the file when it moves, built from the file's and the
/// volume's numbers. There is no domain.
fn object_id(cx: &OpContext, open: &Open, max: u32) -> Result<Vec<u8>, Failure> {
    const LEN: usize = 64;
    if (max as usize) < LEN {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let volume = cx.tree().share.as_ref().map_or(0, |share| volume::id(&share.name));
    let [volume, file] = [volume.to_le_bytes(), open.node.0.to_le_bytes()];
    let mut output = Vec::with_capacity(LEN);
    for part in [volume, file, volume, [0; 8], volume, file] {
        output.extend_from_slice(&part);
    }
    output.resize(LEN, 0);
    Ok(output)
}

/// Controls that concern a file.
async fn on_file(cx: &OpContext, request: &Request) -> Result<Output, Failure> {
    let open = cx.open(request.file)?;
    match request.code {
        CtlCode::SRV_REQUEST_RESUME_KEY => server_copy::resume_key(request, cx.file_id(request.file)),
        CtlCode::SRV_COPYCHUNK | CtlCode::SRV_COPYCHUNK_WRITE => server_copy::copy(cx, request, &open).await,
        CtlCode::DUPLICATE_EXTENTS_TO_FILE | CtlCode::DUPLICATE_EXTENTS_TO_FILE_EX => {
            server_copy::duplicate(cx, request, &open).await
        }
        CtlCode::OFFLOAD_READ => offload::read(cx, request, &open).await,
        CtlCode::OFFLOAD_WRITE => offload::write(cx, request, &open).await,
        CtlCode::LMR_REQUEST_RESILIENCY if cx.dialect() >= Dialect::V2_1 => {
            durability::make_resilient(cx, &open, &request.input)?;
            Ok(Output::default())
        }
        CtlCode::SET_SPARSE => holes::set_sparse(request, &open).await,
        CtlCode::SET_ZERO_DATA => holes::set_zero_data(request, &open).await,
        CtlCode::QUERY_ALLOCATED_RANGES => {
            let sparse = holes::sparse(&open).await?;
            holes::allocated_ranges(request, &open, sparse).await
        }
        CtlCode::WEFT_EXCHANGE => exchange(request, &open).await,
        CtlCode::FILE_LEVEL_TRIM => holes::trim(request, &open).await,
        CtlCode::GET_COMPRESSION => match request.max_output_response {
            0 | 1 => Err(NtStatus::INVALID_PARAMETER.into()),
            // COMPRESSION_FORMAT_NONE.
            _ => Ok(vec![0, 0].into()),
        },
        CtlCode::SET_COMPRESSION => set_compression(request, &open),
        CtlCode::GET_REPARSE_POINT => reparse::get(cx, &open).await,
        CtlCode::DELETE_REPARSE_POINT | CtlCode::SET_REPARSE_POINT => {
            let replaced = match request.code {
                CtlCode::SET_REPARSE_POINT => reparse::set(cx, &open, &request.input).await,
                _ => reparse::delete(cx, &open, &request.input).await,
            };
            if let Err(failure) = &replaced {
                audit::not_replaced(&open, failure.status).await;
            }
            replaced
        }
        CtlCode::SRV_ENUMERATE_SNAPSHOTS => previous::enumerate(cx, request).await.map(Output::from),
        CtlCode::CREATE_OR_GET_OBJECT_ID => {
            object_id(cx, &open, request.max_output_response).map(Output::from)
        }
        // 3.3.5.15.3, 3.3.5.15.4: only for pipe shares.
        CtlCode::PIPE_TRANSCEIVE | CtlCode::PIPE_PEEK => Err(NtStatus::NOT_SUPPORTED.into()),
        // Known, but not supported by this file system (3.3.5.15).
        code if code.name().is_some() => Err(NtStatus::INVALID_DEVICE_REQUEST.into()),
        // 3.3.5.15.8: neither listed nor private to any driver here.
        _ => Err(NtStatus::INVALID_DEVICE_REQUEST.into()),
    }
}

/// Sends a message to the object behind the file. This requires write access.
async fn exchange(request: &Request, open: &Open) -> Result<Output, Failure> {
    open.require_any(AccessMask::FILE_WRITE_DATA)?;
    let file = open.file.as_ref().ok_or(NtStatus::INVALID_DEVICE_REQUEST)?;
    let answer = file.exchange(request.input.clone(), request.max_output_response as usize).await?;
    Ok(answer.to_vec().into())
}

/// [MS-FSA] 2.1.5.10.34: a file system without compression accepts only "none".
fn set_compression(request: &Request, open: &Open) -> Result<Output, Failure> {
    open.require_any(AccessMask::FILE_WRITE_DATA)?;
    match *request.input {
        [0, 0, ..] => Ok(Output::default()),
        [_, _, ..] => Err(NtStatus::NOT_SUPPORTED.into()),
        _ => Err(NtStatus::INVALID_PARAMETER.into()),
    }
}
