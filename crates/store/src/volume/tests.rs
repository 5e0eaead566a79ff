mod blocks;
mod folder;
