//! The memory layout and the calls of libgssapi_krb5 that Weft uses; `library` makes the calls.
//!
//! Spec: RFC 2744 appendix A; `gssapi/gssapi.h` and `gssapi/gssapi_ext.h` of MIT krb5 1.11 and later, whose names are
//! kept.

#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_int, c_void};

pub type OM_uint32 = u32;

#[repr(C)]
pub struct gss_buffer_desc {
    pub length: usize,
    pub value: *mut c_void,
}

#[repr(C)]
pub struct gss_OID_desc {
    pub length: OM_uint32,
    pub elements: *const c_void,
}

#[repr(C)]
pub struct gss_OID_set_desc {
    pub count: usize,
    pub elements: *const gss_OID_desc,
}

#[repr(C)]
pub struct gss_buffer_set_desc {
    pub count: usize,
    pub elements: *const gss_buffer_desc,
}

#[repr(C)]
pub struct gss_key_value_element_desc {
    pub key: *const c_char,
    pub value: *const c_char,
}

#[repr(C)]
pub struct gss_key_value_set_desc {
    pub count: OM_uint32,
    pub elements: *const gss_key_value_element_desc,
}

pub type gss_ctx_id_t = *mut c_void;
pub type gss_cred_id_t = *mut c_void;
pub type gss_name_t = *mut c_void;

/// Flag bits, in requests (req_flags) and results (ret_flags).
pub const GSS_C_MUTUAL_FLAG: OM_uint32 = 2;
pub const GSS_C_CONF_FLAG: OM_uint32 = 16;
pub const GSS_C_INTEG_FLAG: OM_uint32 = 32;
pub const GSS_C_ACCEPT: c_int = 2;
pub const GSS_C_INDEFINITE: OM_uint32 = 0xffff_ffff;
pub const GSS_C_QOP_DEFAULT: OM_uint32 = 0;
pub const GSS_C_GSS_CODE: c_int = 1;
pub const GSS_C_MECH_CODE: c_int = 2;
pub const GSS_C_ANON_FLAG: OM_uint32 = 64;

pub const GSS_S_COMPLETE: OM_uint32 = 0;
pub const GSS_S_CONTINUE_NEEDED: OM_uint32 = 1;
/// Calling errors and routine errors; the other bits are informational.
pub const GSS_ERROR_MASK: OM_uint32 = 0xffff_0000;

/// 1.2.840.113554.1.2.2
pub const KRB5: &[u8] = b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02";
/// GSS_C_NT_HOSTBASED_SERVICE, 1.2.840.113554.1.2.1.4
pub const HOSTBASED_SERVICE: &[u8] = b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x01\x04";
/// GSS_C_INQ_SSPI_SESSION_KEY, 1.2.840.113554.1.2.2.5.5
pub const SESSION_KEY: &[u8] = b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02\x05\x05";

pub type acquire_cred_from = unsafe extern "C" fn(
    *mut OM_uint32,
    gss_name_t,
    OM_uint32,
    *const gss_OID_set_desc,
    c_int,
    *const gss_key_value_set_desc,
    *mut gss_cred_id_t,
    *mut *mut gss_OID_set_desc,
    *mut OM_uint32,
) -> OM_uint32;
pub type accept_sec_context = unsafe extern "C" fn(
    *mut OM_uint32,
    *mut gss_ctx_id_t,
    gss_cred_id_t,
    *const gss_buffer_desc,
    *const c_void,
    *mut gss_name_t,
    *mut *const gss_OID_desc,
    *mut gss_buffer_desc,
    *mut OM_uint32,
    *mut OM_uint32,
    *mut gss_cred_id_t,
) -> OM_uint32;
pub type import_name = unsafe extern "C" fn(
    *mut OM_uint32,
    *const gss_buffer_desc,
    *const gss_OID_desc,
    *mut gss_name_t,
) -> OM_uint32;
pub type init_sec_context = unsafe extern "C" fn(
    *mut OM_uint32,
    gss_cred_id_t,
    *mut gss_ctx_id_t,
    gss_name_t,
    *const gss_OID_desc,
    OM_uint32,
    OM_uint32,
    *const c_void,
    *const gss_buffer_desc,
    *mut *const gss_OID_desc,
    *mut gss_buffer_desc,
    *mut OM_uint32,
    *mut OM_uint32,
) -> OM_uint32;
pub type inquire_context = unsafe extern "C" fn(
    *mut OM_uint32,
    gss_ctx_id_t,
    *mut gss_name_t,
    *mut gss_name_t,
    *mut OM_uint32,
    *mut *const gss_OID_desc,
    *mut OM_uint32,
    *mut c_int,
    *mut c_int,
) -> OM_uint32;
pub type inquire_by_oid = unsafe extern "C" fn(
    *mut OM_uint32,
    gss_ctx_id_t,
    *const gss_OID_desc,
    *mut *mut gss_buffer_set_desc,
) -> OM_uint32;
pub type display_name = unsafe extern "C" fn(
    *mut OM_uint32,
    gss_name_t,
    *mut gss_buffer_desc,
    *mut *const gss_OID_desc,
) -> OM_uint32;
pub type display_status = unsafe extern "C" fn(
    *mut OM_uint32,
    OM_uint32,
    c_int,
    *const gss_OID_desc,
    *mut OM_uint32,
    *mut gss_buffer_desc,
) -> OM_uint32;
pub type get_mic = unsafe extern "C" fn(
    *mut OM_uint32,
    gss_ctx_id_t,
    OM_uint32,
    *const gss_buffer_desc,
    *mut gss_buffer_desc,
) -> OM_uint32;
pub type verify_mic = unsafe extern "C" fn(
    *mut OM_uint32,
    gss_ctx_id_t,
    *const gss_buffer_desc,
    *const gss_buffer_desc,
    *mut OM_uint32,
) -> OM_uint32;
pub type wrap = unsafe extern "C" fn(
    *mut OM_uint32,
    gss_ctx_id_t,
    c_int,
    OM_uint32,
    *const gss_buffer_desc,
    *mut c_int,
    *mut gss_buffer_desc,
) -> OM_uint32;
pub type unwrap = unsafe extern "C" fn(
    *mut OM_uint32,
    gss_ctx_id_t,
    *const gss_buffer_desc,
    *mut gss_buffer_desc,
    *mut c_int,
    *mut OM_uint32,
) -> OM_uint32;
pub type delete_sec_context =
    unsafe extern "C" fn(*mut OM_uint32, *mut gss_ctx_id_t, *mut gss_buffer_desc) -> OM_uint32;
pub type release_cred = unsafe extern "C" fn(*mut OM_uint32, *mut gss_cred_id_t) -> OM_uint32;
pub type release_name = unsafe extern "C" fn(*mut OM_uint32, *mut gss_name_t) -> OM_uint32;
pub type release_buffer = unsafe extern "C" fn(*mut OM_uint32, *mut gss_buffer_desc) -> OM_uint32;
pub type release_buffer_set =
    unsafe extern "C" fn(*mut OM_uint32, *mut *mut gss_buffer_set_desc) -> OM_uint32;
