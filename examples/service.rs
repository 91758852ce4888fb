//! An HTTP service over a keyspace, with axum on tokio.
//!
//! ```text
//!   PUT    /entries/KEY     the body is the value
//!   GET    /entries/KEY     200 and the value, or 404
//!   DELETE /entries/KEY
//!   GET    /entries         all keys, one a line
//! ```
//!
//! Calls of the store may wait for the device, so they run on tokio's threads for blocking work.
//!
//! Without arguments it listens on a free port, makes a few requests to itself and stops:
//! `cargo run -p chelonia-examples --bin service`. With an address and a directory it serves until
//! Ctrl-C: `cargo run -p chelonia-examples --bin service -- 127.0.0.1:8080 my-database`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Router, body::Bytes};
use chelonia::{Database, ErrorKind, Key, Keyspace, KeyspaceOptions};
use std::error::Error;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

type Answer = (StatusCode, Vec<u8>);

/// Runs `call` where it may block, and answers with what it returns.
async fn blocking(call: impl FnOnce() -> chelonia::Result<Answer> + Send + 'static) -> Answer {
    match tokio::task::spawn_blocking(call).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) if error.kind() == ErrorKind::InvalidArgument => {
            (StatusCode::BAD_REQUEST, error.to_string().into_bytes())
        }
        Ok(Err(error)) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string().into_bytes()),
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}

async fn put(State(entries): State<Keyspace>, Path(key): Path<String>, value: Bytes) -> Answer {
    blocking(move || entries.insert(key, value).map(|()| (StatusCode::NO_CONTENT, vec![]))).await
}

async fn fetch(State(entries): State<Keyspace>, Path(key): Path<String>) -> Answer {
    blocking(move || {
        Ok(match entries.get(key)? {
            Some(value) => (StatusCode::OK, value.to_vec()),
            None => (StatusCode::NOT_FOUND, vec![]),
        })
    })
    .await
}

async fn delete(State(entries): State<Keyspace>, Path(key): Path<String>) -> Answer {
    blocking(move || entries.remove(key).map(|()| (StatusCode::NO_CONTENT, vec![]))).await
}

async fn keys(State(entries): State<Keyspace>) -> Answer {
    let line = |key: chelonia::Result<Key>| key.map(|key| [&key[..], b"\n"].concat());
    blocking(move || {
        let lines: Vec<_> = entries.iter().keys().map(line).collect::<chelonia::Result<_>>()?;
        Ok((StatusCode::OK, lines.concat()))
    })
    .await
}

/// Sends a request and prints it with its answer.
async fn request(address: SocketAddr, line: &str, body: &str) -> Result<String, Box<dyn Error>> {
    let mut stream = TcpStream::connect(address).await?;
    let headers = format!("Host: {address}\r\nConnection: close\r\nContent-Length: {}", body.len());
    stream.write_all(format!("{line} HTTP/1.1\r\n{headers}\r\n\r\n{body}").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, value) = answer.split_once("\r\n\r\n").ok_or("an answer has a head")?;
    println!("{line} {body:?}: {} {value:?}", head.lines().next().unwrap_or_default());
    Ok(value.to_owned())
}

async fn try_out(address: SocketAddr) -> Result<(), Box<dyn Error>> {
    request(address, "PUT /entries/ada", "analyst").await?;
    request(address, "PUT /entries/grace", "admiral").await?;
    assert_eq!(request(address, "GET /entries/ada", "").await?, "analyst");
    request(address, "DELETE /entries/ada", "").await?;
    request(address, "GET /entries/ada", "").await?;
    assert_eq!(request(address, "GET /entries", "").await?, "grace\n");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let directory = tempfile::tempdir()?;
    let (address, path) = match &arguments[..] {
        [] => ("127.0.0.1:0", directory.path().join("entries")),
        [address, path] => (address.as_str(), path.into()),
        _ => return Err("usage: service [ADDRESS DIRECTORY]".into()),
    };
    let listener = TcpListener::bind(address).await?;
    let database = Database::open(path)?;
    let entries = database.keyspace("entries", KeyspaceOptions::default())?;
    let routes = Router::new()
        .route("/entries", get(keys))
        .route("/entries/{key}", get(fetch).put(put).delete(delete))
        .with_state(entries);
    let address = listener.local_addr()?;
    println!("listening on {address}");

    tokio::select! {
        ended = axum::serve(listener, routes).into_future() => ended?,
        tried = try_out(address), if arguments.is_empty() => tried?,
        interrupted = tokio::signal::ctrl_c() => interrupted?,
    }
    // Calls that are still under way end first, or fail with `Stopped`.
    database.close()?;
    println!("closed");
    Ok(())
}
