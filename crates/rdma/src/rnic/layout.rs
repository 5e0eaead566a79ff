//! Checks the bindings against the installed headers: a small C program prints sizes, offsets and constants.
//!
//! It compares with `infiniband/verbs.h` and `rdma/rdma_cma.h`. If the headers or a C compiler are missing, the test
//! prints that it is skipped.

use std::fmt::Write;
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::Command;

use super::bindings::*;

/// C expressions and their expected values.
type Expected = Vec<(String, u64)>;

/// Offsets of fields, and the size of a structure if it matters. `rust = c` if the names differ.
macro_rules! fields {
    ($out:ident, $name:ident { $($field:ident $(= $c:literal)?),* $(,)? }) => {
        $($out.push((
            format!("offsetof(struct {}, {})", stringify!($name), fields!(@c $field $($c)?)),
            offset_of!($name, $field) as u64,
        ));)*
    };
    ($out:ident, $name:ident whole { $($fields:tt)* }) => {
        $out.push((format!("sizeof(struct {})", stringify!($name)), size_of::<$name>() as u64));
        fields!($out, $name { $($fields)* });
    };
    (@c $field:ident) => { stringify!($field) };
    (@c $field:ident $c:literal) => { $c };
}

macro_rules! constants {
    ($out:ident, $($name:ident)*) => {
        $($out.push((stringify!($name).to_owned(), $name as u64));)*
    };
}

fn expected() -> Expected {
    let mut out = Vec::new();
    fields!(out, ibv_device whole { node_type, transport_type, name, dev_name, dev_path, ibdev_path });
    fields!(out, ibv_context_ops whole { poll_cq, req_notify_cq, post_send, post_recv });
    fields!(out, ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors });
    fields!(out, ibv_device_attr whole {
        fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id, hw_ver, max_qp,
        max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom,
        max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, _rest = "max_ee_init_rd_atom", max_pkeys,
        local_ca_ack_delay, phys_port_cnt,
    });
    fields!(out, ibv_port_attr whole {
        state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr,
        pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width,
        active_speed, phys_state, link_layer, flags, port_cap_flags2,
    });
    fields!(out, ibv_pd whole { context, handle });
    fields!(out, ibv_mr whole { context, pd, addr, length, handle, lkey, rkey });
    fields!(out, ibv_comp_channel whole { context, fd, refcnt });
    fields!(out, ibv_cq { context, channel, cq_context, handle, cqe });
    fields!(out, ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num });
    fields!(out, ibv_qp_cap whole {
        max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data
    });
    fields!(out, ibv_qp_init_attr whole { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all });
    fields!(out, ibv_sge whole { addr, length, lkey });
    fields!(out, ibv_send_wr whole {
        wr_id, next, sg_list, num_sge, opcode, send_flags, invalidate_rkey, wr, qp_type, bind_mw
    });
    out.push((
        "offsetof(struct ibv_send_wr, wr.rdma.remote_addr)".into(),
        wr_offset(offset_of!(wr_rdma, remote_addr)),
    ));
    out.push(("offsetof(struct ibv_send_wr, wr.rdma.rkey)".into(), wr_offset(offset_of!(wr_rdma, rkey))));
    fields!(out, ibv_recv_wr whole { wr_id, next, sg_list, num_sge });
    fields!(out, ibv_wc whole {
        wr_id, status, opcode, vendor_err, byte_len, invalidated_rkey, qp_num, src_qp, wc_flags, pkey_index, slid, sl,
        dlid_path_bits,
    });
    fields!(out, ibv_async_event whole { element, event_type });
    fields!(out, rdma_event_channel whole { fd });
    fields!(out, rdma_addr whole { src_storage, dst_storage, ibaddr = "addr" });
    fields!(out, rdma_route whole { addr, path_rec, num_paths });
    fields!(out, rdma_cm_id { verbs, channel, context, qp, route, ps, port_num });
    fields!(out, rdma_conn_param whole {
        private_data, private_data_len, responder_resources, initiator_depth, flow_control, retry_count,
        rnr_retry_count, srq, qp_num,
    });
    fields!(out, rdma_cm_event { id, listen_id, event, status, param });
    constants!(out,
        IBV_DEVICE_MEM_MGT_EXTENSIONS
        IBV_ACCESS_LOCAL_WRITE IBV_ACCESS_REMOTE_WRITE IBV_ACCESS_REMOTE_READ
        IBV_QPT_RC
        IBV_WR_RDMA_WRITE IBV_WR_SEND IBV_WR_RDMA_READ IBV_WR_SEND_WITH_INV
        IBV_SEND_SIGNALED IBV_SEND_SOLICITED
        IBV_WC_SUCCESS IBV_WC_LOC_LEN_ERR IBV_WC_WR_FLUSH_ERR IBV_WC_REM_INV_REQ_ERR IBV_WC_REM_ACCESS_ERR
        IBV_WC_REM_OP_ERR IBV_WC_RETRY_EXC_ERR IBV_WC_RNR_RETRY_EXC_ERR IBV_WC_REM_INV_RD_REQ_ERR
        IBV_WC_REM_ABORT_ERR IBV_WC_RESP_TIMEOUT_ERR IBV_WC_WITH_INV
        IBV_EVENT_CQ_ERR IBV_EVENT_QP_FATAL IBV_EVENT_QP_REQ_ERR IBV_EVENT_QP_ACCESS_ERR IBV_EVENT_DEVICE_FATAL
        RDMA_PS_TCP
        RDMA_CM_EVENT_ADDR_RESOLVED RDMA_CM_EVENT_ADDR_ERROR RDMA_CM_EVENT_ROUTE_RESOLVED
        RDMA_CM_EVENT_ROUTE_ERROR RDMA_CM_EVENT_CONNECT_REQUEST RDMA_CM_EVENT_CONNECT_ERROR
        RDMA_CM_EVENT_UNREACHABLE RDMA_CM_EVENT_REJECTED RDMA_CM_EVENT_ESTABLISHED RDMA_CM_EVENT_DISCONNECTED
        RDMA_CM_EVENT_DEVICE_REMOVAL
    );
    // These numbers identify the kinds of devices.
    for (name, number) in [
        ("IBV_NODE_CA", 1),
        ("IBV_NODE_RNIC", 4),
        ("IBV_TRANSPORT_IB", 0),
        ("IBV_TRANSPORT_IWARP", 1),
        ("IBV_PORT_DOWN", 1),
        ("IBV_PORT_INIT", 2),
        ("IBV_PORT_ARMED", 3),
        ("IBV_PORT_ACTIVE", 4),
        ("IBV_LINK_LAYER_INFINIBAND", 1),
        ("IBV_LINK_LAYER_ETHERNET", 2),
        ("IBV_MTU_256", 1),
        ("IBV_MTU_4096", 5),
    ] {
        out.push((name.into(), number));
    }
    out
}

fn wr_offset(within: usize) -> u64 {
    (offset_of!(ibv_send_wr, wr) + within) as u64
}

#[test]
fn bindings_agree_with_the_installed_headers() {
    const HEADERS: [&str; 2] = ["infiniband/verbs.h", "rdma/rdma_cma.h"];
    if let Some(missing) = HEADERS.iter().find(|header| !Path::new("/usr/include").join(header).exists()) {
        println!("skipped: {missing} is not installed (apt install libibverbs-dev librdmacm-dev)");
        return;
    }
    let expected = expected();
    let mut program = String::from("#include <stdio.h>\n#include <stddef.h>\n");
    for header in HEADERS {
        let _ = writeln!(program, "#include <{header}>");
    }
    program.push_str("int main(void) {\n");
    for (expression, _) in &expected {
        let _ = writeln!(program, "printf(\"%llu\\n\", (unsigned long long)({expression}));");
    }
    program.push_str("return 0; }\n");
    let dir = tempfile::tempdir().unwrap();
    let (source, binary) = (dir.path().join("layout.c"), dir.path().join("layout"));
    std::fs::write(&source, program).unwrap();
    match Command::new("cc").arg(&source).arg("-o").arg(&binary).status() {
        Ok(status) => assert!(status.success(), "the headers lack a name that the bindings use"),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            println!("skipped: no C compiler (apt install gcc)");
            return;
        }
        Err(e) => panic!("{e}"),
    }
    let output = Command::new(&binary).output().unwrap();
    let printed: Vec<u64> =
        String::from_utf8(output.stdout).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(printed.len(), expected.len());
    for ((expression, ours), theirs) in expected.iter().zip(printed) {
        assert_eq!(*ours, theirs, "{expression}");
    }
}
