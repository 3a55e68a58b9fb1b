//! The `tidegate` program: parses the command line and dispatches commands.

#[macro_use]
extern crate tidegate_workspace;

mod autopilot;
mod commands;
#[cfg(test)]
mod help;
mod memory;
mod webhook;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Useful work out of the silicon you pay for: record, query and steer a GPU cluster.
#[derive(Parser)]
#[command(version, about, arg_required_else_help = true)]
#[command(after_help = "Examples:
  tidegate up --demo
  tidegate sql \"SELECT team, sum(gpu_ms_held) / 3600000 AS gpu_hours FROM usage_1d GROUP BY team\"
  tidegate explain job 4711")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Up(commands::up::UpArgs),
    Import(commands::import::ImportArgs),
    Pipeline(commands::pipeline::PipelineArgs),
    Autopilot(commands::autopilot::AutopilotArgs),
    Plan(commands::plan::PlanArgs),
    Policy(commands::policy::PolicyArgs),
    Price(commands::price::PriceArgs),
    Schema(commands::schema::SchemaArgs),
    Sql(commands::sql::SqlArgs),
    Explain(commands::explain::ExplainArgs),
    Backtest(commands::backtest::BacktestArgs),
    Sim(commands::sim::SimArgs),
    Insight(commands::insight::InsightArgs),
    Status(commands::status::StatusArgs),
    Top(commands::top::TopArgs),
    Token(commands::token::TokenArgs),
    Topology(commands::topology::TopologyArgs),
    Log(commands::log::LogCommand),
    Mcp(commands::mcp::McpArgs),
    Completions(commands::completions::CompletionsArgs),
    Man(commands::man::ManArgs),
    QueryWorker(commands::query_worker::QueryWorkerArgs),
    Bench(tidegate_lab::bench::BenchArgs),
    Chaos(tidegate_lab::chaos::ChaosArgs),
    #[command(flatten)]
    Node(tidegate_node::Command),
}

fn main() -> ExitCode {
    tidegate_node::keep_files_private();
    let cli = Cli::parse();
    // Log lines would be drawn over what `top` draws.
    if !matches!(cli.command, Command::Top(_)) {
        commands::init_logging();
    }
    let works_through_history = match &cli.command {
        Command::Import(_) => true,
        Command::Pipeline(args) => args.works_through_history(),
        Command::Bench(args) => args.works_through_history(),
        _ => false,
    };
    if works_through_history {
        memory::keep_pages();
    }
    memory::measure_queries();
    let result = match cli.command {
        Command::Up(args) => commands::up::run(args),
        Command::Import(args) => commands::import::run(args),
        Command::Pipeline(args) => commands::pipeline::run(args),
        Command::Autopilot(args) => commands::autopilot::run(args),
        Command::Plan(args) => commands::plan::run(args),
        Command::Policy(args) => commands::policy::run(args),
        Command::Price(args) => commands::price::run(args),
        Command::Schema(args) => commands::schema::run(args),
        Command::Sql(args) => commands::sql::run(args),
        Command::Explain(args) => commands::explain::run(args),
        Command::Backtest(args) => commands::backtest::run(args),
        Command::Sim(args) => commands::sim::run(args),
        Command::Insight(args) => commands::insight::run(args),
        Command::Status(args) => commands::status::run(args),
        Command::Top(args) => commands::top::run(args),
        Command::Token(args) => commands::token::run(args),
        Command::Topology(args) => commands::topology::run(args),
        Command::Log(args) => commands::log::run(args),
        Command::Mcp(args) => commands::mcp::run(args),
        Command::Completions(args) => commands::completions::run(args, Cli::command()),
        Command::Man(args) => commands::man::run(args, Cli::command()),
        Command::QueryWorker(args) => commands::query_worker::run(args),
        Command::Bench(args) => tidegate_lab::bench::run(args),
        Command::Chaos(args) => tidegate_lab::chaos::run(args),
        Command::Node(command) => return command.run(),
    };
    commands::exit_code(result)
}
