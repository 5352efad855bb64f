//! clap's errors, in the command's own one-line form.

use std::env;

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::Cli;
use crate::arguments::Refusal;
use crate::failure::Failure;

/// The failure that reports clap's `error`.
pub fn failure(error: &clap::Error) -> Failure {
    let argument = strings(error, ContextKind::InvalidArg);
    let name = argument.first().map_or("arguments", |text| bare(text));
    let value = strings(error, ContextKind::InvalidValue).join(" ");
    let valid = strings(error, ContextKind::ValidValue).join(", ");
    match error.kind() {
        ErrorKind::InvalidValue if value.is_empty() => {
            let allowed = match valid.is_empty() {
                true => "one value".to_owned(),
                false => format!("one of {valid}"),
            };
            Failure::refused(name, "its value is missing", allowed)
        }
        ErrorKind::InvalidValue => Failure::refused(
            name,
            format!("`{value}` is unknown"),
            format!("one of {valid}"),
        ),
        ErrorKind::ValueValidation => {
            let source = std::error::Error::source(error);
            match source.and_then(|source| source.downcast_ref::<Refusal>()) {
                Some(Refusal { wrong, allowed }) => Failure::refused(name, wrong, allowed),
                None => Failure::refused(name, format!("`{value}` is not valid"), see_help()),
            }
        }
        ErrorKind::UnknownArgument => {
            let similar = strings(error, ContextKind::SuggestedArg);
            let allowed = match similar.first() {
                Some(similar) => format!("perhaps {} is meant", bare(similar)),
                None => see_help(),
            };
            Failure::refused(name, "no such argument", allowed)
        }
        ErrorKind::MissingRequiredArgument => {
            let missing: Vec<_> = argument.iter().map(|text| bare(text)).collect();
            let all = format!("this command needs {}", missing.join(", "));
            Failure::refused(name, "missing", all)
        }
        ErrorKind::InvalidSubcommand => {
            let found = strings(error, ContextKind::InvalidSubcommand).join(" ");
            Failure::refused("command", format!("`{found}` is unknown"), commands())
        }
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            Failure::refused("command", "missing", commands())
        }
        ErrorKind::ArgumentConflict => {
            let other = strings(error, ContextKind::PriorArg);
            let other: Vec<_> = other.iter().map(|text| bare(text)).collect();
            let wrong = match other.as_slice() {
                [other] if *other == name => "given more than once".to_owned(),
                others => format!("cannot be used with {}", others.join(", ")),
            };
            Failure::refused(name, wrong, "leave one of them out")
        }
        _ => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            Failure::refused(name, first.trim_start_matches("error: "), see_help())
        }
    }
}

/// The subcommands that are valid where one is missing or unknown.
fn commands() -> String {
    let cli = Cli::command();
    let named = env::args_os().nth(1);
    let named = named.and_then(|name| cli.find_subcommand(name));
    let parent = named
        .filter(|command| command.has_subcommands())
        .unwrap_or(&cli);
    let names: Vec<_> = parent
        .get_subcommands()
        .map(|command| command.get_name())
        .collect();
    format!("one of {}", names.join(", "))
}

fn see_help() -> String {
    "the command's --help lists its arguments".to_owned()
}

/// An argument's name without clap's additions, as in `--mask <MASK>` and `<INPUT>`.
fn bare(text: &str) -> &str {
    let name = text.split([' ', '=']).next().unwrap_or(text);
    name.trim_matches(['<', '>', '[', ']', '.'])
}

fn strings(error: &clap::Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    }
}
