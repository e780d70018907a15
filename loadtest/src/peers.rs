//! What the gateway is measured beside: a bare axum handler (JSON in, one pooled round trip, JSON out, nothing else), and nginx
//! proxying one HTTP call over kept connections to an upstream that answers what the gateway would. Each is a process of its own.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::Failed;

#[derive(Deserialize)]
struct Asked {
    #[serde(rename = "accountNo")]
    account: String,
}

#[derive(Serialize)]
struct Told {
    balance: i64,
}

struct Bare {
    host: SocketAddr,
    idle: Mutex<Vec<TcpStream>>,
}

/// Serves the bare handler.
pub(crate) async fn serve_bare(listen: SocketAddr, host: SocketAddr) -> Result<(), Failed> {
    let state = Arc::new(Bare { host, idle: Mutex::default() });
    let router = Router::new().route("/api/gateway/balance", post(bare)).with_state(state);
    axum::serve(TcpListener::bind(listen).await?, router).await?;
    Ok(())
}

async fn bare(
    State(bare): State<Arc<Bare>>,
    axum::Json(asked): axum::Json<Asked>,
) -> Result<axum::Json<Told>, StatusCode> {
    let balance = bare.ask(&asked.account).await.map_err(|_| StatusCode::BAD_GATEWAY)?;
    Ok(axum::Json(Told { balance }))
}

impl Bare {
    async fn ask(&self, account: &str) -> std::io::Result<i64> {
        let pooled = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut stream = match pooled {
            Some(stream) => stream,
            None => {
                let stream = TcpStream::connect(self.host).await?;
                stream.set_nodelay(true)?;
                stream
            }
        };
        let frame = format!("0200{:<22}{account:0>14}IN01{:8}", "GWMNB20260101000000000", "");
        stream.write_all(frame.as_bytes()).await?;
        let mut reply = [0; 61];
        stream.read_exact(&mut reply).await?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        let digits = reply.iter().skip(22).take(15).filter(|byte| byte.is_ascii_digit());
        Ok(digits.fold(0, |value, digit| value * 10 + i64::from(digit - b'0')))
    }
}

/// Serves what nginx proxies to: one answer of the gateway's size.
pub(crate) async fn serve_upstream(listen: SocketAddr) -> Result<(), Failed> {
    const ANSWER: &str = r#"{"transactionId":"GWMNU202611290000001A3","status":"SUCCESS","data":{"balance":6879445000,"responseCode":"0000","responseMessage":"정상 처리되었습니다"},"elapsedMs":0.312}"#;
    let answer = || async { ([("content-type", "application/json")], ANSWER) };
    let router = Router::new().route("/api/gateway/balance", post(answer));
    axum::serve(TcpListener::bind(listen).await?, router).await?;
    Ok(())
}

/// nginx with two workers before an upstream; everything that it writes goes into `folder`.
pub(crate) fn nginx(listen: SocketAddr, upstream: SocketAddr, folder: &Path) -> Result<Command, Failed> {
    let place = folder.display();
    let config = format!(
        "daemon off;\nworker_processes 2;\npid {place}/nginx.pid;\nerror_log {place}/nginx-error.log;\n\
         events {{ worker_connections 4096; }}\n\
         http {{\n\
           access_log off;\n\
           client_body_temp_path {place}/body;\nproxy_temp_path {place}/proxy;\nfastcgi_temp_path {place}/fastcgi;\n\
           uwsgi_temp_path {place}/uwsgi;\nscgi_temp_path {place}/scgi;\n\
           keepalive_requests 1000000000;\n\
           upstream bank {{ server {upstream}; keepalive 100; keepalive_requests 1000000000; }}\n\
           server {{\n\
             listen {listen};\n\
             location / {{ proxy_pass http://bank; proxy_http_version 1.1; proxy_set_header Connection \"\"; }}\n\
           }}\n\
         }}\n"
    );
    std::fs::write(folder.join("nginx.conf"), config)?;
    let program = ["/usr/sbin/nginx", "/usr/local/sbin/nginx"].into_iter().find(|path| Path::new(path).exists());
    let mut command = Command::new(program.ok_or("nginx is not installed: apt-get install nginx-light")?);
    command.arg("-p").arg(folder).arg("-c").arg(folder.join("nginx.conf"));
    Ok(command)
}
