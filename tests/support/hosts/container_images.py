from pathlib import Path


def write_container_image(folder: Path, name: str = "busybox", text: str = "kind: lxc\n") -> Path:
    """Write an image whose root file system contains only an empty init. Return the image's folder."""
    image = folder / name
    (image / "rootfs/sbin").mkdir(parents=True)
    (image / "rootfs/sbin/init").touch()
    (image / "image.yaml").write_text(text)
    return image
