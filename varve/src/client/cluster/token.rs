//! `varve admin token`.

use anyhow::bail;
use proto::TenantId;
use proto::meta::{Command, Role, State, Tenant, Token, TokenHash};
use serde_json::{Value, json};

use super::connection::Connection;
use super::{change, outcome};
use crate::client::{print, table};
use crate::command::{CreateTokenOptions, NodeOptions, RevokeTokenOptions, Time, TokenCommands};
use crate::process::random_token;

/// Number of characters of a hash that tables show. Two of 4,096 tokens hardly ever have the same.
const SHOWN_HASH_CHARS: usize = 12;
/// Smallest number of characters of a hash that name a token.
const HASH_CHARS_MIN: usize = 8;

pub(super) async fn run(command: &TokenCommands) -> anyhow::Result<()> {
    match command {
        TokenCommands::Create(options) => create(options).await,
        TokenCommands::Revoke(options) => revoke(options).await,
        TokenCommands::List(options) => list(options).await,
    }
}

async fn create(options: &CreateTokenOptions) -> anyhow::Result<()> {
    let CreateTokenOptions { tenant, role, expires, change: change_options } = options;
    let connection = Connection::new(&change_options.nodes)?;
    let state = connection.state().await?;
    let text = random_token()?;
    let hash = TokenHash::of(&text);
    let token = Token { role: *role, expires_ns: expires.map(|time| time.0) };
    change(&connection, state, &Command::CreateToken(tenant.clone(), hash, token), change_options).await?;
    if change_options.nodes.json {
        let mut report = json_of(tenant, hash, &token);
        report["dry_run"] = change_options.dry_run.into();
        if !change_options.dry_run {
            report["token"] = text.into();
        }
        return print(&format!("{report}\n"));
    }
    let of = format!("of tenant {tenant} with the role {}, which expires {}", name(*role), expiry(&token));
    if change_options.dry_run {
        return print(&format!("dry run: would create a token {of}\n"));
    }
    print(&format!("# Token {} {of}. It is shown only now.\n{text}\n", shown(hash)))
}

async fn revoke(options: &RevokeTokenOptions) -> anyhow::Result<()> {
    let RevokeTokenOptions { hash: prefix, change: change_options } = options;
    let connection = Connection::new(&change_options.nodes)?;
    let state = connection.state().await?;
    let (tenant, hash, token) = find(&state, prefix)?;
    let command = Command::RevokeToken(tenant.clone(), hash);
    let is_changed = change(&connection, state, &command, change_options).await?;
    if change_options.nodes.json {
        let mut report = json_of(&tenant, hash, &token);
        report["dry_run"] = change_options.dry_run.into();
        report["changed"] = is_changed.into();
        return print(&format!("{report}\n"));
    }
    let outcome = outcome(is_changed, change_options, "revoked", "would revoke");
    print(&format!("{outcome} token {} of tenant {tenant} with the role {}\n", shown(hash), name(token.role)))
}

/// Finds the token whose hash begins with a text.
fn find(state: &State, prefix: &str) -> anyhow::Result<(TenantId, TokenHash, Token)> {
    let prefix = prefix.to_ascii_lowercase();
    if prefix.len() < HASH_CHARS_MIN {
        bail!("give at least {HASH_CHARS_MIN} characters of the hash: `varve admin token list` prints them");
    }
    let all = state.tenants.values().flat_map(|tenant| tenant.tokens.iter().map(move |token| (tenant, token)));
    let mut matching = all.filter(|(_, (hash, _))| hash.to_string().starts_with(&prefix));
    match (matching.next(), matching.next()) {
        (Some((tenant, (hash, token))), None) => Ok((tenant.name.clone(), *hash, *token)),
        (None, _) => bail!("no token has a hash that begins with {prefix}: see `varve admin token list`"),
        (Some(_), Some(_)) => bail!("several tokens have a hash that begins with {prefix}: give more characters"),
    }
}

async fn list(options: &NodeOptions) -> anyhow::Result<()> {
    let state = Connection::new(options)?.state().await?;
    if options.json {
        let tokens = |tenant: &Tenant| {
            let of = tenant.name.clone();
            tenant.tokens.iter().map(|(hash, token)| json_of(&of, *hash, token)).collect::<Vec<_>>()
        };
        return print(&format!("{}\n", Value::Array(state.tenants.values().flat_map(tokens).collect())));
    }
    print(&table_of(state.tenants.values()))
}

/// Returns a table of the tokens of some tenants.
pub(super) fn table_of<'a>(tenants: impl IntoIterator<Item = &'a Tenant>) -> String {
    let mut rows = Vec::new();
    for tenant in tenants {
        for (hash, token) in &tenant.tokens {
            let role = name(token.role).to_owned();
            rows.push(vec![shown(*hash), tenant.name.to_string(), role, expiry(token)]);
        }
    }
    if rows.is_empty() {
        return "no tokens: create one with `varve admin token create --tenant NAME --role push`\n".to_owned();
    }
    table::render(&["token", "tenant", "role", "expires"], &rows)
}

/// Returns the JSON of a token.
pub(super) fn json_of(tenant: &TenantId, hash: TokenHash, token: &Token) -> Value {
    let expires = token.expires_ns.map(|time| Time(time).to_string());
    json!({"hash": hash.to_string(), "tenant": tenant.as_str(), "role": name(token.role), "expires": expires})
}

fn shown(hash: TokenHash) -> String {
    hash.to_string().chars().take(SHOWN_HASH_CHARS).collect()
}

fn name(role: Role) -> &'static str {
    match role {
        Role::Push => "push",
        Role::Read => "read",
        Role::Admin => "admin",
    }
}

fn expiry(token: &Token) -> String {
    match token.expires_ns {
        None => "never".to_owned(),
        Some(time) if time <= Time::now().0 => format!("{} (expired)", Time(time)),
        Some(time) => Time(time).to_string(),
    }
}
