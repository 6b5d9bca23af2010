//! Tests of clusters of several nodes: killed nodes, and nodes that lost their data.

mod kills;
mod lost_directory;
