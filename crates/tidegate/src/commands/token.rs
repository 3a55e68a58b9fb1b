//! `tidegate token`: makes, lists and revokes the tokens of principals.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use clap::{Args, Subcommand};
use tidegate_lake::pipeline::parse_duration_ms;
use tidegate_server::access::{Entry, Role, Token, TokenFile};

use super::{CommandError, CommandResult};

mod kafka_acls;

/// Make, list and revoke tokens: who may reach a server, and do what
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate token new --tokens tokens.toml --role agent --cluster prod --node n1
  tidegate token new --tokens tokens.toml --role watcher --cluster prod
  tidegate token new --tokens tokens.toml --role viewer --id ann --team vision --expires 90d
  tidegate token list --tokens tokens.toml
  tidegate token revoke --tokens tokens.toml ann

Roles: agent, watcher, service, viewer, operator, administrator; docs/reference/permissions.md has
what each may do. The file holds hashes of tokens, not tokens. Servers read it again within a second
of a change.")]
pub struct TokenArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a token and print it, once
    #[command(after_help = "Examples:
  tidegate token new --tokens tokens.toml --role agent --cluster prod --node n1 > n1.token
  tidegate token new --tokens tokens.toml --role viewer --id ann --team vision --expires 90d")]
    New(NewArgs),
    /// List principals, what they are bound to, and when their tokens end
    #[command(after_help = "Examples:
  tidegate token list --tokens tokens.toml")]
    List {
        #[command(flatten)]
        file: FileArgs,
    },
    KafkaAcls(kafka_acls::KafkaAclArgs),
    /// Revoke tokens; servers follow within a second
    #[command(after_help = "Examples:
  tidegate token revoke --tokens tokens.toml agent-n1")]
    Revoke {
        #[command(flatten)]
        file: FileArgs,
        /// Ids, as `tidegate token list` shows them
        #[arg(required = true)]
        ids: Vec<String>,
    },
}

#[derive(Debug, Args)]
struct FileArgs {
    /// Token file of the server
    #[arg(long, value_name = "FILE", env = "TIDEGATE_TOKENS")]
    tokens: PathBuf,
}

#[derive(Debug, Args)]
struct NewArgs {
    #[command(flatten)]
    file: FileArgs,
    /// Role: agent, watcher, service, viewer, operator or administrator
    #[arg(long)]
    role: Role,
    /// Name of the principal in logs [default: of an agent agent-NODE, of a watcher watch-CLUSTER]
    #[arg(long, value_name = "NAME")]
    id: Option<String>,
    /// Cluster of an agent or watcher, as its --cluster
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// Node of an agent, as its --node; may be given several times for a token that nodes share
    #[arg(long = "node", value_name = "NAME")]
    nodes: Vec<String>,
    /// Team whose rows alone a viewer sees; may be given several times
    #[arg(long = "team", value_name = "NAME")]
    teams: Vec<String>,
    /// Time until the token ends, e.g. 90d, or `never`
    #[arg(long, value_name = "DURATION", default_value = "365d", value_parser = lifetime)]
    expires: Lifetime,
}

/// How long a token counts; `None` for ever.
#[derive(Debug, Clone, Copy)]
struct Lifetime(Option<i64>);

fn lifetime(text: &str) -> Result<Lifetime, String> {
    if text == "never" {
        return Ok(Lifetime(None));
    }
    match parse_duration_ms(text)? {
        ms @ 1.. => Ok(Lifetime(Some(ms))),
        _ => Err("write a time above zero, e.g. 90d, or never".into()),
    }
}

pub fn run(args: TokenArgs) -> CommandResult {
    match args.command {
        Command::New(args) => new(args)?,
        Command::KafkaAcls(args) => kafka_acls::print(&args)?,
        Command::List { file } => list(&file.tokens)?,
        Command::Revoke { file, ids } => revoke(&file.tokens, &ids)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn new(args: NewArgs) -> Result<(), CommandError> {
    let path = &args.file.tokens;
    let id = match (args.id, args.role, args.nodes.first(), &args.cluster) {
        (Some(id), ..) => id,
        (None, Role::Agent, Some(node), _) => format!("agent-{node}"),
        (None, Role::Watcher, _, Some(cluster)) => format!("watch-{cluster}"),
        _ => return Err("name whose token it is with --id NAME".into()),
    };
    let expires = match args.expires.0 {
        None => None,
        Some(ms) => {
            let end = TimeDelta::try_milliseconds(ms).and_then(|life| Utc::now().checked_add_signed(life));
            let end: DateTime<Utc> = end.ok_or("--expires is too far away; write `never`")?;
            Some(end.to_rfc3339_opts(SecondsFormat::Secs, true).parse()?)
        }
    };
    let token = Token::generate()?;
    let entry = Entry {
        id: id.clone(),
        role: args.role,
        sha256: token.hash(),
        expires,
        cluster: args.cluster,
        nodes: args.nodes,
        teams: args.teams,
    };
    TokenFile::change(path, |file| {
        file.tokens.push(entry);
        Ok(())
    })?;
    eprintln!("token of {id} ({}), shown this once:", args.role);
    say!("{}", token.text());
    Ok(())
}

fn list(path: &Path) -> Result<(), CommandError> {
    let file = TokenFile::read(path)?;
    say!("{:<24} {:<14} {:<22} FOR", "ID", "ROLE", "EXPIRES");
    for entry in &file.tokens {
        let expires = entry.expires.as_ref().map_or_else(|| "never".to_owned(), ToString::to_string);
        let of = |what: &str, names: &[String]| match names {
            [] => String::new(),
            names => format!("{what} {} ", names.join(", ")),
        };
        let cluster = entry.cluster.as_ref().map_or_else(String::new, |name| format!("cluster {name} "));
        let bounds = cluster + &of("nodes", &entry.nodes) + &of("teams", &entry.teams);
        say!("{:<24} {:<14} {:<22} {}", entry.id, entry.role.name(), expires, bounds.trim_end());
    }
    Ok(())
}

fn revoke(path: &Path, ids: &[String]) -> Result<(), CommandError> {
    if !path.exists() {
        return Err(format!("there is no token file {}; nothing is revoked", path.display()).into());
    }
    TokenFile::change(path, |file| {
        match ids.iter().find(|id| !file.tokens.iter().any(|entry| entry.id == **id)) {
            Some(unknown) => Err(format!("there is no token {unknown:?}; nothing is revoked")),
            None => {
                file.tokens.retain(|entry| !ids.contains(&entry.id));
                Ok(())
            }
        }
    })?;
    say!("revoked: {}", ids.join(", "));
    Ok(())
}
