//! The contract between routers and nodes, generated from `proto/varve/v1/node.proto`.

#![allow(missing_docs, unreachable_pub, clippy::all, reason = "generated code")]

tonic::include_proto!("varve.v1");
