//! The messages between routers and nodes, and between nodes, generated from `proto/varve/v1/`.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::allow_attributes_without_reason,
    clippy::clone_on_ref_ptr,
    clippy::missing_errors_doc,
    clippy::too_many_lines,
    reason = "generated code"
)]

tonic::include_proto!("varve.v1");
