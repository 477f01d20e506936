#!/usr/bin/env python3
"""A store with one volume: the programs of LVM and Ceph that a batch uses, under their names. $STORE has the file `volume` and the directory `snapshots`."""
import json, os, shutil, sys

BLOCK = 65536
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
store = os.environ["STORE"]
snapshots = os.path.join(store, "snapshots")
held = os.path.join(store, "held")


def path(snapshot):
    return os.path.join(snapshots, snapshot)


def fail(why):
    sys.exit(f"  {name}: {why}")


def value(option):
    return words[words.index(option) + 1]


def differences(old, new):
    """Numbers of the blocks that differ."""
    with open(old, "rb") as old, open(new, "rb") as new:
        number = 0
        while (one := old.read(BLOCK)) + (other := new.read(BLOCK)):
            if one != other:
                yield number
            number += 1


def make(snapshot):
    if os.path.exists(path(snapshot)):
        fail(f"{snapshot} exists")
    shutil.copyfile(os.path.join(store, "volume"), path(snapshot))
    # Told at each success: nobody needs to see it.
    print("  WARNING: sum of all thin volume sizes exceeds the size of the pool.", file=sys.stderr)


# The identifiers of LVM: the volume has 1, and snapshots have others in the order of their names.
ids = {snapshot: 2 + number for number, snapshot in enumerate(sorted(os.listdir(snapshots)))}

if name == "lvs":
    row = lambda lv, device, pool="", metadata="", id="": dict(
        lv_name=lv, lv_dm_path=device, pool_lv=pool, metadata_lv=metadata, thin_id=id, origin="")
    rows = [row("volume", os.path.join(store, "volume"), "pool", "", "1"), row("thick", "/dev/mapper/vg-thick"),
            row("pool", "/dev/mapper/vg-pool", "", "[pool_tmeta]"), row("[pool_tmeta]", "/dev/mapper/vg-pool_tmeta")]
    moved = open(os.path.join(store, "moved")).read() if os.path.exists(os.path.join(store, "moved")) else ""
    rows += [row(snapshot, path(snapshot), "other" if snapshot in moved else "pool", "", str(id)) for snapshot, id in ids.items()]
    if words[-1] != "vg":
        fail(f'Volume group "{words[-1]}" not found')
    print(json.dumps({"report": [{"lv": rows}]}))
elif name == "lvcreate":
    assert words[-1] == "vg/volume" and "--snapshot" in words, words
    make(value("--name"))
elif name == "lvremove":
    os.remove(path(words[-1].removeprefix("vg/")))
elif name == "dmsetup":
    assert words[:3] == ["message", "/dev/mapper/vg-pool-tpool", "0"], words
    if words[3] == "reserve_metadata_snap":
        open(held, "x").close()
    else:
        os.remove(held)
elif name == "thin_delta":
    assert os.path.exists(held) and words[-1] == "/dev/mapper/vg-pool_tmeta" and "--metadata-snap" in words, words
    of_id = {str(id): snapshot for snapshot, id in ids.items()}
    old, new = path(of_id[value("--snap1")]), path(of_id[value("--snap2")])
    print(f'<superblock uuid="" time="1" transaction="2" data_block_size="{BLOCK // 512}" nr_data_blocks="9">')
    print(f'  <diff left="{value("--snap1")}" right="{value("--snap2")}">')
    for block in differences(old, new):
        print(f'    <different begin="{block}" length="1"/>')
    if not os.path.exists(os.path.join(store, "cut")):
        print("  </diff>\n</superblock>")
elif name == "rbd":
    words = words[words.index("snap" if "snap" in words else "diff"):]
    image, _, snapshot = words[-1].partition("@")
    if image != "pool/volume":
        fail(f"error opening image {image}: (2) No such file or directory")
    if words[:2] == ["snap", "ls"]:
        print(json.dumps([{"id": id, "name": snapshot, "size": 1, "protected": "false"} for snapshot, id in ids.items()]))
    elif words[:2] == ["snap", "create"]:
        make(snapshot)
    elif words[:2] == ["snap", "rm"]:
        os.remove(path(snapshot))
    else:
        blocks = differences(path(value("--from-snap")), path(snapshot))
        print(json.dumps([{"offset": block * BLOCK, "length": BLOCK, "exists": "true"} for block in blocks]))
elif name == "qemu-nbd":
    opened = words.pop()
    assert opened.startswith("driver=rbd,pool=pool,image=volume,user=backup,snapshot="), opened
    file = path(opened.rsplit("=", 1)[1])
    own = os.path.dirname(sys.argv[0])
    os.environ["PATH"] = ":".join(other for other in os.environ["PATH"].split(":") if other != own)
    os.execvp("qemu-nbd", ["qemu-nbd", *words, f"driver=raw,file.driver=file,file.filename={file}"])
else:
    fail("unknown program")
