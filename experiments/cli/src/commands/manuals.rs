//! `ccplane manuals`: man pages and completions, for packages.

use crate::cli::{Cli, ManualsArgs};
use ccplane_agent::failure::Failure;
use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;
use std::fs::{self, File};
use std::io;
use std::path::Path;

/// The section of programs that the administrator runs.
const ADMINISTRATION: &str = "8";

pub(crate) fn manuals(args: &ManualsArgs) -> Result<(), Failure> {
    Ok(write(&args.folder)?)
}

fn write(folder: &Path) -> io::Result<()> {
    let [man1, man8] = ["man1", "man8"].map(|section| folder.join(section));
    for folder in [&man1, &man8] {
        fs::create_dir_all(folder)?;
    }
    clap_mangen::generate_to(Cli::command(), &man1)?;
    let daemon = ccplane_agent::args::Cli::command();
    Man::new(daemon.clone()).section(ADMINISTRATION).render(&mut File::create(man8.join("ccplaned.8"))?)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let folder = folder.join(shell.to_string());
        fs::create_dir_all(&folder)?;
        for mut command in [Cli::command(), daemon.clone()] {
            let name = command.get_name().to_owned();
            clap_complete::generate_to(shell, &mut command, name, &folder)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_testing::skipped;
    use std::process::Command;

    fn written() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        folder
    }

    /// All commands that `--help` lists, as their man pages are called.
    fn pages(command: &clap::Command, name: &str, all: &mut Vec<(String, Vec<String>)>) {
        let visible = |argument: &&clap::Arg| !argument.is_hide_set();
        let long = |argument: &clap::Arg| argument.get_long().map(str::to_owned);
        all.push((name.to_owned(), command.get_arguments().filter(visible).filter_map(long).collect()));
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
            pages(sub, &format!("{name}-{}", sub.get_name()), all);
        }
    }

    #[test]
    fn each_command_has_a_page_with_all_its_flags() {
        let folder = written();
        let mut all = Vec::new();
        pages(&Cli::command(), "ccplane", &mut all);
        assert!(all.len() > 30, "{}", all.len());
        for (name, flags) in all {
            let page = fs::read_to_string(folder.path().join(format!("man1/{name}.1"))).unwrap();
            let page = page.replace("\\-", "-");
            assert!(page.contains(&format!(".TH {name} 1")), "{name}");
            for flag in flags {
                assert!(page.contains(&format!("--{flag}")), "{name} --{flag}");
            }
        }
        let daemon = fs::read_to_string(folder.path().join("man8/ccplaned.8")).unwrap();
        assert!(daemon.contains(".TH ccplaned 8") && daemon.contains("check\\-config"), "{daemon}");
    }

    #[test]
    fn two_runs_write_the_same_bytes() {
        let listed = |folder: &tempfile::TempDir| {
            let mut files = Vec::new();
            for section in fs::read_dir(folder.path()).unwrap() {
                for file in fs::read_dir(section.unwrap().path()).unwrap() {
                    let path = file.unwrap().path();
                    let bytes = fs::read(&path).unwrap();
                    files.push((path.strip_prefix(folder.path()).unwrap().to_owned(), bytes));
                }
            }
            files.sort();
            files
        };
        assert_eq!(listed(&written()), listed(&written()));
    }

    /// A shell that has read the completions offers commands and flags.
    #[test]
    fn bash_completes_commands_and_flags() {
        let folder = written();
        let script = "source \"$1\"; COMP_WORDS=($2); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); \
                      _ccplane ccplane \"${COMP_WORDS[-1]}\" \"${COMP_WORDS[-2]}\"; echo \"${COMPREPLY[@]}\"";
        let complete = |line: &str| {
            let file = folder.path().join("bash/ccplane.bash");
            let output = Command::new("bash").args(["-c", script, "bash"]).arg(file).arg(line).output();
            output.map(|o| String::from_utf8(o.stdout).unwrap().trim().to_owned())
        };
        if complete("ccplane x").is_err() {
            return skipped("completions of bash", "bash is not installed");
        }
        assert_eq!(complete("ccplane flo").unwrap(), "flows");
        assert_eq!(complete("ccplane flows --wat").unwrap(), "--watch");
    }

    #[test]
    fn completions_are_written_for_each_shell() {
        let folder = written();
        for name in
            ["zsh/_ccplane", "zsh/_ccplaned", "fish/ccplane.fish", "fish/ccplaned.fish", "bash/ccplaned.bash"]
        {
            assert!(fs::metadata(folder.path().join(name)).unwrap().len() > 500, "{name}");
        }
    }
}
