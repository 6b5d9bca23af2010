//! The messages of OTLP profiles, generated from the vendored and unmodified `.proto` files of opentelemetry-proto
//! v1.11.0 (`proto/otlp`).
//!
//! Only senders and tests use these types. The router reads input with its own bounded decoder, which also knows the
//! older layouts.

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

/// A `google.protobuf.FileDescriptorSet` of these messages, for decoders that read fields by name, such as JSON.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/otlp.fds"));

pub mod collector {
    pub mod profiles {
        pub mod v1development {
            tonic::include_proto!("opentelemetry.proto.collector.profiles.v1development");
        }
    }
}
pub mod common {
    pub mod v1 {
        tonic::include_proto!("opentelemetry.proto.common.v1");
    }
}
pub mod profiles {
    pub mod v1development {
        tonic::include_proto!("opentelemetry.proto.profiles.v1development");
    }
}
pub mod resource {
    pub mod v1 {
        tonic::include_proto!("opentelemetry.proto.resource.v1");
    }
}
