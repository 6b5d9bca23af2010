//! Tests of the calls to nodes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;

use super::*;

/// Calls a node that accepts connections and never responds. Returns the code and text of the error.
async fn error_of_a_silent_node(patience: Patience) -> (Code, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint::from_shared(format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let nodes = Nodes::remote_with(endpoint, None, patience);
    let error = nodes.placement().await.unwrap_err();
    (error.code(), error.to_string())
}

#[tokio::test]
async fn calls_to_a_silent_node_time_out() {
    let short = Duration::from_millis(50);
    let long = Duration::from_secs(600);
    let (code, text) = error_of_a_silent_node(Patience { alive: short, answer: long }).await;
    assert!(code == Code::Unavailable && text.contains("127.0.0.1"), "no sign of life: {code} {text}");
    let (code, text) = error_of_a_silent_node(Patience { alive: long, answer: short }).await;
    assert!(code == Code::Unavailable && text.contains("within"), "no answer: {code} {text}");
}

#[tokio::test]
async fn calls_run_together_up_to_the_limit_and_the_first_error_in_order_wins() {
    let running = &AtomicUsize::new(0);
    let most = &AtomicUsize::new(0);
    let call = |number: usize| async move {
        most.fetch_max(running.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        // Later calls end first.
        tokio::time::sleep(Duration::from_millis(40 - number as u64)).await;
        running.fetch_sub(1, Ordering::Relaxed);
        if number % 10 == 7 { Err(number) } else { Ok(number) }
    };
    assert_eq!(in_order((20..27).map(call).collect()).await, Ok((20..27).collect()));
    assert_eq!(in_order((0..30).map(call).collect()).await, Err(7));
    assert_eq!(most.load(Ordering::Relaxed), SHARDS_AT_ONCE_MAX);
}
