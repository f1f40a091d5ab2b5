//! `extant build --like OLD`: a new image with the least changes to an older one.

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

use extant::build::{BuildOptions, SizeChoice};
use extant::update::build_like_with;
use extant_image::options::FormatOptions;

use super::{BuildArgs, cancelled_by_signals};
use crate::exit;
use crate::imagearg::ImageArg;
use crate::imagearg::target::OutputTarget;
use crate::look::arg_failure;
use crate::sandbox::{Needs, confine, directory_of};
use crate::sizes::parse_size;
use crate::update::{Steps, Verb, finish};

pub(super) fn run(args: &BuildArgs, old: &OsStr, output: &Path) -> ExitCode {
    match built(args, old, output) {
        Ok(code) => code,
        Err((code, why)) => exit::fail(code, &why),
    }
}

fn built(args: &BuildArgs, old: &OsStr, output: &Path) -> Result<ExitCode, (u8, String)> {
    let usage = |why: &str| (exit::USAGE_CODE, why.to_owned());
    let given = args.format.options().map_err(|why| (exit::USAGE_CODE, why))?;
    if given != FormatOptions::default()
        || args.format.uuid().is_some()
        || args.profile.is_some()
        || args.grow_to.is_some()
        || args.headroom.is_some()
    {
        let why = "with --like the file system is that of the old image: leave out its options; \
                   `extant tune` changes some of them, --size +N adds room";
        return Err(usage(why));
    }
    let OutputTarget::File(target) = OutputTarget::parse(output, args.force, args.dry_run)? else {
        return Err(usage("--like makes a file: `extant update` changes an image where it is"));
    };
    let image = ImageArg::parse_whole(old, "compared").map_err(arg_failure)?;
    args.tree.refuse_tolerance()?;
    let options = BuildOptions {
        size: size(args)?,
        leave_out: vec![image.path.clone()],
        replace: args.force,
        sync: !args.no_sync,
        dry_run: args.dry_run,
        ..args.tree.options()?
    };
    let cancel = cancelled_by_signals().map_err(|why| (exit::TARGET, why))?;
    let device = image.open_read_only().map_err(arg_failure)?;
    let writes = vec![directory_of(&target)];
    let needs = Needs { writes, reads_everywhere: true, keeps_capabilities: true, ..Needs::default() };
    confine(&output.display().to_string(), &needs);
    let steps = Steps::default();
    let done = build_like_with(device, &options, args.tree.sources(), &target, &steps, &cancel);
    drop(steps);
    let verb = if args.dry_run { Verb::WouldBe } else { Verb::Is };
    let name = output.display().to_string();
    Ok(finish(&name, &image.to_string(), verb, (args.json, args.quiet), done))
}

fn size(args: &BuildArgs) -> Result<SizeChoice, (u8, String)> {
    let parse = |text: &str| parse_size(text).map_err(|why| (exit::USAGE_CODE, format!("--size: {why}")));
    Ok(match args.size.as_deref() {
        None | Some("auto") => SizeChoice::default(),
        Some(text) => match text.strip_prefix('+') {
            Some(more) => SizeChoice::Smallest { headroom_percent: 0.0, more_bytes: parse(more)? },
            None => SizeChoice::Bytes(parse(text)?),
        },
    })
}
