//! signed-loader is an independent asynchronous SMB client (the crate smb2), which signs every request with AES-GMAC
//! or encrypts when the server says so. It keeps a number of READs or WRITEs outstanding on one connection for a while
//! and prints what it did. It measures nothing of the server; smb.py does.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Parser;
use futures_util::future::try_join_all;
use smb2::client::Connection;
use smb2::msg::create::{
    CreateDisposition, CreateRequest, CreateResponse, ImpersonationLevel, ShareAccess,
};
use smb2::msg::read::ReadRequest;
use smb2::msg::write::WriteRequest;
use smb2::pack::{Pack, ReadCursor, Unpack};
use smb2::types::flags::FileAccessMask;
use smb2::types::status::NtStatus;
use smb2::types::{Command, CreditCharge, FileId, OplockLevel, TreeId};
use smb2::{Session, Tree};

#[derive(Parser)]
struct Arguments {
    #[arg(long)]
    address: String,
    #[arg(long)]
    share: String,
    #[arg(long)]
    file: String,
    /// Bytes of a request.
    #[arg(long)]
    size: u32,
    /// Requests outstanding.
    #[arg(long)]
    depth: usize,
    /// Bytes of the file to work on.
    #[arg(long)]
    span: u64,
    #[arg(long)]
    seconds: f64,
    /// WRITE instead of READ.
    #[arg(long)]
    write: bool,
}

struct Load {
    connection: Connection,
    tree: TreeId,
    file: FileId,
    arguments: Arguments,
    operations: Cell<u64>,
}

impl Load {
    async fn open(arguments: Arguments) -> anyhow::Result<Load> {
        let mut connection = Connection::connect(&arguments.address, Duration::from_secs(10)).await?;
        connection.negotiate().await?;
        let user = std::env::var("LOADER_USER")?;
        let password = std::env::var("LOADER_PASSWORD")?;
        Session::setup(&mut connection, &user, &password, "").await?;
        let tree = Tree::connect(&mut connection, &arguments.share).await?.tree_id;
        let create = CreateRequest {
            requested_oplock_level: OplockLevel::None,
            impersonation_level: ImpersonationLevel::Impersonation,
            desired_access: FileAccessMask(FileAccessMask::GENERIC_READ | FileAccessMask::GENERIC_WRITE),
            file_attributes: 0,
            share_access: ShareAccess(ShareAccess::FILE_SHARE_READ | ShareAccess::FILE_SHARE_WRITE),
            create_disposition: CreateDisposition::FileOpen,
            create_options: 0,
            name: arguments.file.clone(),
            create_contexts: Vec::new(),
        };
        let frame = connection.execute(Command::Create, &create, Some(tree)).await?;
        ensure!(frame.header.status == NtStatus::SUCCESS, "CREATE: {:?}", frame.header.status);
        let file = CreateResponse::unpack(&mut ReadCursor::new(&frame.body))?.file_id;
        Ok(Load { connection, tree, file, arguments, operations: Cell::new(0) })
    }

    /// Keeps `depth` requests outstanding until then.
    async fn run(&self, until: Instant) -> anyhow::Result<()> {
        let workers = (0..self.arguments.depth).map(|number| async move {
            let mut chance = fastrand::Rng::with_seed(number as u64);
            while Instant::now() < until {
                let size = u64::from(self.arguments.size);
                self.request(chance.u64(..self.arguments.span / size) * size).await?;
                self.operations.set(self.operations.get() + 1);
            }
            anyhow::Ok(())
        });
        try_join_all(workers).await?;
        Ok(())
    }

    async fn request(&self, offset: u64) -> anyhow::Result<()> {
        let size = self.arguments.size;
        let (command, body): (Command, Box<dyn Pack>) = if self.arguments.write {
            let body = WriteRequest {
                data_offset: 0x70,
                offset,
                file_id: self.file,
                channel: 0,
                remaining_bytes: 0,
                write_channel_info_offset: 0,
                write_channel_info_length: 0,
                flags: 0,
                data: vec![7; size as usize],
            };
            (Command::Write, Box::new(body))
        } else {
            let body = ReadRequest {
                padding: 0x50,
                flags: 0,
                length: size,
                offset,
                file_id: self.file,
                minimum_count: 0,
                channel: 0,
                remaining_bytes: 0,
                read_channel_info: Vec::new(),
            };
            (Command::Read, Box::new(body))
        };
        let charge = CreditCharge(size.div_ceil(65536) as u16);
        let frame =
            self.connection.execute_with_credits(command, body.as_ref(), Some(self.tree), charge).await?;
        ensure!(frame.header.status == NtStatus::SUCCESS, "{command:?}: {:?}", frame.header.status);
        let least = if self.arguments.write { 16 } else { 16 + size as usize };
        ensure!(frame.body.len() >= least, "{command:?} answered {} bytes", frame.body.len());
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let load = Load::open(Arguments::parse()).await.context("connecting")?;
    load.run(Instant::now() + Duration::from_millis(300)).await?; // warm up
    load.operations.set(0);
    println!("begin");
    let start = Instant::now();
    load.run(start + Duration::from_secs_f64(load.arguments.seconds)).await?;
    let (seconds, operations) = (start.elapsed().as_secs_f64(), load.operations.get());
    let bytes = operations * u64::from(load.arguments.size);
    println!("{}", serde_json::json!({ "operations": operations, "bytes": bytes, "seconds": seconds }));
    // Connected until standard input ends: a server may account for a connection only as long as it lasts.
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}
