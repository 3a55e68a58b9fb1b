//! `tidegate token`: makes, lists and revokes principals, who are known by tokens or certificates.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use clap::{Args, Subcommand};
use tidegate_lake::pipeline::parse_duration_ms;
use tidegate_server::access::{CertificateName, Entry, Role, Token, TokenFile};

use super::{CommandError, CommandResult};

mod kafka_acls;

/// Make, list and revoke tokens, or name certificates: who may reach a server, and do what
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate token new --tokens tokens.toml --role agent --cluster prod --node n1
  tidegate token new --tokens tokens.toml --role watcher --cluster prod
  tidegate token new --tokens tokens.toml --role viewer --id ann --team vision --expires 90d
  tidegate token new --tokens tokens.toml --role operator --id ben --certificate email:ben@site.example
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
    /// Make a token and print it, once; or name a certificate
    #[command(after_help = "Examples:
  tidegate token new --tokens tokens.toml --role agent --cluster prod --node n1 > n1.token
  tidegate token new --tokens tokens.toml --role viewer --id ann --team vision --expires 90d
  tidegate token new --tokens tokens.toml --role operator --id ben --certificate email:ben@site.example

A certificate has one name: its first e-mail address among the subject alternative names, or else
the first URI, or else the first DNS name; its common name if it has no such names at all. It is
compared whole, with its kind.")]
    New(NewArgs),
    /// List principals, how they are known, what they are bound to, and when they end
    #[command(after_help = "Examples:
  tidegate token list --tokens tokens.toml")]
    List {
        #[command(flatten)]
        file: FileArgs,
    },
    KafkaAcls(kafka_acls::KafkaAclArgs),
    /// Revoke tokens, and take certificates back; servers follow within a second
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
    /// Name of a certificate that the principal shows in place of a token, to servers with
    /// --tls-client-ca: email:NAME, uri:NAME or dns:NAME, its first subject alternative name of
    /// the first of these kinds that it has; or cn:NAME, its common name, if it has no
    /// alternative names at all
    #[arg(long, value_name = "KIND:NAME")]
    certificate: Option<CertificateName>,
    /// Make a token beside the certificate; either will do
    #[arg(long, requires = "certificate")]
    with_token: bool,
    /// Time until the principal ends, e.g. 90d, or `never`
    #[arg(long, value_name = "DURATION", default_value = "365d", value_parser = lifetime)]
    expires: Lifetime,
}

/// How long an entry counts; `None` for ever.
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
    let makes_token = args.certificate.is_none() || args.with_token;
    let token = makes_token.then(Token::generate).transpose()?;
    let entry = Entry {
        id: id.clone(),
        role: args.role,
        sha256: token.as_ref().map(Token::hash),
        certificate: args.certificate.clone(),
        expires,
        cluster: args.cluster,
        nodes: args.nodes,
        teams: args.teams,
    };
    TokenFile::change(path, |file| {
        file.tokens.push(entry);
        Ok(())
    })?;
    if let Some(name) = args.certificate {
        eprintln!("whoever shows a certificate of {name} is {id} ({})", args.role);
    }
    if let Some(token) = token {
        eprintln!("token of {id} ({}), shown this once:", args.role);
        say!("{}", token.text());
    }
    Ok(())
}

fn list(path: &Path) -> Result<(), CommandError> {
    let file = TokenFile::read(path)?;
    say!("{:<24} {:<14} {:<22} {:<32} FOR", "ID", "ROLE", "EXPIRES", "KNOWN BY");
    for entry in &file.tokens {
        let expires = entry.expires.as_ref().map_or_else(|| "never".to_owned(), ToString::to_string);
        let of = |what: &str, names: &[String]| match names {
            [] => String::new(),
            names => format!("{what} {} ", names.join(", ")),
        };
        let cluster = entry.cluster.as_ref().map_or_else(String::new, |name| format!("cluster {name} "));
        let bounds = cluster + &of("nodes", &entry.nodes) + &of("teams", &entry.teams);
        let (id, role, known_by) = (&entry.id, entry.role.name(), known_by(entry));
        say!("{id:<24} {role:<14} {expires:<22} {known_by:<32} {}", bounds.trim_end());
    }
    Ok(())
}

fn known_by(entry: &Entry) -> String {
    let token = entry.sha256.map(|_| "token".to_owned());
    let certificate = entry.certificate.as_ref().map(ToString::to_string);
    token.into_iter().chain(certificate).collect::<Vec<_>>().join(", ")
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
