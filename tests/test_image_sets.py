"""Data sets of image files as their lists describe them: Clothing1M, class folders, CSV lists, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from image_cases import CLASS_NAMES, encoded, loaded, picture, write_clothing1m
from jocor_fast.data.catalogue import find_dataset, load_dataset
from jocor_fast.data.images.clothing1m import LEAST_FOR_ESTIMATE
from jocor_fast.errors import DataError


def append(path: Path, text: str) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(text)


def write_images(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(encoded(picture(0, (8, 8), np.random.default_rng(0))))


def test_what_was_written_beside_the_class_folders_is_no_class(tmp_path: Path) -> None:
    """As after `cd photos; jocor-fast train --dataset folder:.`, whose files are in runs/."""
    write_images(tmp_path, "cat/1.jpg", "dog/2.jpg", "runs/first/curves.png", "runs/first/audit/noise-matrix.png")
    write_images(tmp_path, "runs/noise/noise-matrix.png", "runs/search/search.png", "runs/other/noise-matrix.png")
    write_images(tmp_path, "runs/plotted/comparison.png", "runs/plotted/noise-matrix.png")
    write_images(tmp_path, "runs/small/cat/1.jpg", "runs/small/dog/2.jpg")
    names = (
        "first/metrics.jsonl",
        "small/prepared.json",
        "noise/noise-estimate.json",
        "search/search.json",
        "other/audit.json",
    )
    for name in names:
        append(tmp_path / "runs" / name, "{}\n")
    dataset = loaded(f"folder:{tmp_path}")
    assert dataset.class_names == ("cat", "dog")
    assert dataset.train.inputs.paths == ["cat/1.jpg", "dog/2.jpg"]
    folders = ", ".join(f"{tmp_path}/runs/{name}" for name in ("first", "noise", "other", "plotted", "search", "small"))
    assert dataset.notes == (f"{folders}: written by jocor-fast, so its pictures are skipped",)


@pytest.mark.parametrize("in_annotations", [True, False])
@pytest.mark.parametrize("below", ["", "clothing1m"])
def test_clothing1m_is_read_in_its_official_layout(tmp_path: Path, below: str, in_annotations: bool) -> None:
    keys = write_clothing1m(tmp_path / below, in_annotations=in_annotations)
    dataset = loaded("clothing1m", tmp_path)
    assert dataset.train.inputs.folder == find_dataset("clothing1m", tmp_path) == tmp_path / below
    assert dataset.train.inputs.paths == [
        key for number, key in enumerate(keys) if number != 3
    ]  # its line has no label
    assert (len(dataset.train), len(dataset.val or ()), len(dataset.test or ())) == (39, 12, 12)
    assert dataset.val is not None
    assert dataset.val.labels.tolist() == [0, 1, 2, 3] * 3
    assert dataset.class_names == CLASS_NAMES
    assert dataset.files.preprocessing.resize == (256, 256)
    assert dataset.train.clean_labels is None
    assert dataset.notes == (
        f"1 of 40 keys in noisy_train_key_list.txt have no label and are left out, the first is {keys[3]}",
    )


def test_names_of_any_bytes_commas_and_blanks_find_their_labels(tmp_path: Path) -> None:
    write_clothing1m(tmp_path, in_annotations=False)
    strange = b"images/0/00/a b, c \xff.jpg"
    with open(tmp_path / "noisy_train_key_list.txt", "ab") as file:
        file.write(strange + b"\r\n")
    with open(tmp_path / "noisy_label_kv.txt", "ab") as file:
        file.write(strange + b" 2\r\n")
    train = loaded("clothing1m", tmp_path).train
    assert train.inputs.paths[-1].encode(errors="surrogateescape") == strange
    assert train.labels[-1] == 2


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        ("noisy_label_kv.txt", "images/x.jpg 4", "noisy_label_kv.txt, line 45: the label must lie in 0 … 3, got '4'"),
        ("clean_label_kv.txt", "images/x.jpg -1", "clean_label_kv.txt, line 29: the label must lie in 0 … 3, got '-1'"),
        ("noisy_label_kv.txt", "images/x.jpg one", "line 45: the label must lie in 0 … 3, got 'one'"),
        ("noisy_train_key_list.txt", "{first}", "line 41: the key {first} stands in line 1 already"),
        ("clean_test_key_list.txt", "{first}", "line 1: {first} is in clean_test_key_list.txt, line 13, too"),
        ("clean_val_key_list.txt", "{first}", "line 1: {first} is in clean_val_key_list.txt, line 13, too"),
    ],
)
def test_a_wrong_line_of_clothing1m_is_named(tmp_path: Path, file: str, line: str, message: str) -> None:
    first = write_clothing1m(tmp_path, in_annotations=False)[0]
    append(tmp_path / file, line.format(first=first) + "\n")
    with pytest.raises(DataError) as caught:
        load_dataset("clothing1m", tmp_path)
    assert message.format(first=first) in str(caught.value)


def test_a_key_with_two_labels_is_named(tmp_path: Path) -> None:
    write_clothing1m(tmp_path, in_annotations=False)
    append(tmp_path / "noisy_label_kv.txt", "images/x.jpg 1\nimages/x.jpg 2\n")
    with pytest.raises(DataError, match=r"line 46: images/x.jpg is labelled 2 here and 1 before"):
        load_dataset("clothing1m", tmp_path)


def test_an_absent_clothing1m_is_one_sentence_with_its_files_and_source(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load_dataset("clothing1m", tmp_path)
    for part in (str(tmp_path), "noisy_train_key_list.txt", "category_names_eng.txt", "images/", "Cysu/noisy_label"):
        assert part in str(caught.value)
    write_clothing1m(tmp_path)
    (tmp_path / "annotations" / "clean_label_kv.txt").unlink()
    with pytest.raises(DataError, match=r"annotations has no clean_label_kv.txt"):
        load_dataset("clothing1m", tmp_path)


def test_the_noise_rate_is_measured_on_enough_images_with_both_labels(tmp_path: Path) -> None:
    write_clothing1m(tmp_path, in_annotations=False)
    assert loaded("clothing1m", tmp_path).noise_estimate is None  # four of them say too little
    keys = [f"images/0/00/both{number}.jpg" for number in range(LEAST_FOR_ESTIMATE)]
    append(tmp_path / "clean_train_key_list.txt", "".join(f"{key}\n" for key in keys))
    append(tmp_path / "clean_label_kv.txt", "".join(f"{key} 1\n" for key in keys))
    append(tmp_path / "noisy_label_kv.txt", "".join(f"{key} {1 + (i % 4 == 0)}\n" for i, key in enumerate(keys)))
    assert loaded("clothing1m", tmp_path).noise_estimate == pytest.approx(0.25, abs=0.005)


def test_class_folders_are_numbered_by_name_and_their_images_ordered_by_path(tmp_path: Path) -> None:
    write_images(tmp_path, "cat/b.jpg", "cat/a.PNG", "bee/deep/er/z.jpeg", "bee/.hidden.jpg", ".git/x.jpg")
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    dataset = loaded(f"folder:{tmp_path}")
    assert dataset.train.inputs.paths == ["bee/deep/er/z.jpeg", "cat/a.PNG", "cat/b.jpg"]
    assert dataset.train.labels.tolist() == [0, 1, 1]
    assert dataset.label_table == dataset.class_names == ("bee", "cat")
    assert (dataset.test, dataset.val, dataset.files.preprocessing.resize) == (None, None, 256)


@pytest.mark.parametrize("train", ["train/", ""])
def test_a_folder_named_test_holds_the_test_images(tmp_path: Path, train: str) -> None:
    write_images(tmp_path, f"{train}ant/1.jpg", f"{train}bee/2.jpg", "test/bee/3.jpg", "val/ant/4.jpg")
    dataset = loaded(f"folder:{tmp_path}")
    assert dataset.train.inputs.paths == [f"{train}ant/1.jpg", f"{train}bee/2.jpg"]
    assert dataset.test is not None
    assert (dataset.test.inputs.paths, dataset.test.labels.tolist()) == (["test/bee/3.jpg"], [1])
    assert dataset.val is not None
    assert (dataset.val.inputs.paths, dataset.val.labels.tolist()) == (["val/ant/4.jpg"], [0])
    write_images(tmp_path, "test/cow/5.jpg")
    with pytest.raises(DataError, match=r"test/cow/5.jpg: the class 'cow' has no training images"):
        load_dataset(f"folder:{tmp_path}")


def test_folders_of_images_that_are_left_out_beside_train_are_said(tmp_path: Path) -> None:
    """A class called train, whose images lie in folders, would be all that is learnt from."""
    write_images(tmp_path, "train/steam/1.jpg", "train/electric/2.jpg", "test/steam/3.jpg", "notes/none.txt")
    assert loaded(f"folder:{tmp_path}").notes == ()
    write_images(tmp_path, "car/4.jpg", "plane/steam/5.jpg", ".hidden/6.jpg")
    dataset = loaded(f"folder:{tmp_path}")
    assert dataset.class_names == ("electric", "steam")
    assert dataset.notes == (f"car, plane in {tmp_path}: left out, since train/ there holds class folders",)


@pytest.mark.parametrize(
    ("train", "val", "test"),
    [("Train", "Val", "Test"), ("training", "validation", "testing"), ("TRAIN", "Valid", "test")],
)
def test_the_parts_of_a_folder_may_have_any_of_their_usual_names(
    tmp_path: Path, train: str, val: str, test: str
) -> None:
    """Case 53."""
    write_images(tmp_path, *(f"{part}/{label}/1.jpg" for part in (train, val, test) for label in ("cat", "dog")))
    dataset = loaded(f"folder:{tmp_path}")
    assert (dataset.class_names, dataset.notes) == (("cat", "dog"), ())
    for part, name in ((dataset.train, train), (dataset.val, val), (dataset.test, test)):
        assert part is not None
        assert part.inputs.paths == [f"{name}/cat/1.jpg", f"{name}/dog/1.jpg"]


def test_of_two_names_for_a_part_ours_counts_else_both_are_named(tmp_path: Path) -> None:
    write_images(tmp_path, "train/cat/1.jpg", "val/cat/2.jpg", "valid/cat/3.jpg")
    dataset = loaded(f"folder:{tmp_path}")
    assert dataset.val is not None
    assert dataset.val.inputs.paths == ["val/cat/2.jpg"]
    assert any(note.startswith("valid in ") for note in dataset.notes)
    write_images(tmp_path, "Test/cat/4.jpg", "testing/cat/5.jpg")
    with pytest.raises(DataError, match="Test and testing could both be its part 'test'"):
        load_dataset(f"folder:{tmp_path}")


def test_a_folder_called_like_a_part_is_one_only_if_it_holds_the_classes_beside_it(tmp_path: Path) -> None:
    write_images(tmp_path, "valid/2020/1.jpg", "invalid/2020/2.jpg", "Testing/invalid/3.jpg")
    dataset = loaded(f"folder:{tmp_path}")
    assert dataset.class_names == ("invalid", "valid")
    assert dataset.test is not None
    assert dataset.test.inputs.paths == ["Testing/invalid/3.jpg"]


def test_folders_called_nearly_like_parts_are_said_with_the_names_that_count(tmp_path: Path) -> None:
    spelling = "the parts of a data set are called train (or training), val (valid, validation) and test (testing)"
    write_images(tmp_path / "a", "train_set/cat/1.jpg", "Val2017/cat/2.jpg", "valley/3.jpg")
    assert f"Val2017, train_set: {spelling}" in " ".join(loaded(f"folder:{tmp_path / 'a'}").notes)
    write_images(tmp_path / "b", "Train/cat/1.jpg", "test_images/cat/2.jpg")
    assert f"test_images: {spelling}" in " ".join(loaded(f"folder:{tmp_path / 'b'}").notes)
    write_images(tmp_path / "c", "trn/cat/1.jpg", "test/cat/2.jpg")
    with pytest.raises(DataError, match=r"the class 'cat' has no training images \(the parts of a data set are called"):
        load_dataset(f"folder:{tmp_path / 'c'}")


def test_what_systems_put_into_folders_is_neither_class_nor_image(tmp_path: Path) -> None:
    write_images(tmp_path, "cat/1.jpg", "cat/@eaDir/1.jpg/THUMB.jpg", "@eaDir/2.jpg", "__MACOSX/cat/3.jpg")
    write_images(tmp_path, ".thumbnails/4.jpg", "lost+found/5.jpg", "#recycle/6.jpg", "dog/._7.jpg", "dog/8.jpg")
    dataset = loaded(f"folder:{tmp_path}")
    assert (dataset.class_names, dataset.train.inputs.paths, dataset.notes) == (
        ("cat", "dog"),
        ["cat/1.jpg", "dog/8.jpg"],
        (),
    )


def write_other_suffixes(folder: Path) -> None:
    """Write the folder of case 52, in small."""
    names = [f"cat/{n}.jpg" for n in range(2)] + [f"cat/{n}.jfif" for n in range(2)] + ["cat/2", "dog/3.JFIF"]
    write_images(folder, *names, *(f"fox/{n}.jpg" for n in range(3)))
    for name, kind in (("fox/3.jp2", "JPEG2000"), ("fox/4.photo", "PNG"), ("dog/5.ico", "ICO")):
        (folder / name).write_bytes(encoded(picture(0, (16, 16), np.random.default_rng(0)), kind))
    (folder / "owl").mkdir()
    for name in [f"cat/{n}.txt" for n in range(3)] + ["dog/a.heic", "owl/b.HEIC", "fox/README"]:
        (folder / name).write_bytes(b"no image\n")


def test_images_are_taken_whatever_their_suffix_and_the_rest_is_counted_by_it(tmp_path: Path) -> None:
    """Case 52."""
    write_other_suffixes(tmp_path)
    os.mkfifo(tmp_path / "cat" / "pipe")  # without a writer
    dataset = loaded(f"folder:{tmp_path}")
    assert dataset.class_names == ("cat", "dog", "fox")
    assert [Path(path).suffix for path in dataset.train.inputs.paths] == [
        *(".jfif", ".jpg", ".jfif", ".jpg", "", ".JFIF", ".ico"),
        *(".jpg", ".jpg", ".jpg", ".jp2", ".photo"),
    ]
    assert dataset.notes == ("7 files skipped: 3 .txt, 2 .heic, 2 without a suffix", "no image in owl")


def test_names_that_are_numbers_are_those_classes_unless_two_are_the_same_number(tmp_path: Path) -> None:
    for name in ("00", "01", "2"):
        write_images(tmp_path / "numbers" / name, "a.jpg")
    numbers = loaded(f"folder:{tmp_path / 'numbers'}")
    assert (numbers.class_names, numbers.label_table) == (("0", "1", "2"), None)
    for name in ("0", "1", "01"):
        write_images(tmp_path / "names" / name, "a.jpg")
    names = loaded(f"folder:{tmp_path / 'names'}")
    assert names.class_names == names.label_table == ("0", "01", "1")
    assert names.train.labels.tolist() == [0, 1, 2]


def test_a_class_may_be_called_test(tmp_path: Path) -> None:
    write_images(tmp_path, "test/1.jpg", "other/2.jpg")
    dataset = loaded(f"folder:{tmp_path}")
    assert (dataset.class_names, dataset.test) == (("other", "test"), None)


def test_links_that_lead_back_are_named_before_they_are_followed_for_ever(tmp_path: Path) -> None:
    """As `ln -s PHOTOS LINK` leaves one in PHOTOS if LINK is there already: two of them are 2 ** 40 paths."""
    write_images(tmp_path, "cat/1.jpg", "dog/2.jpg")
    (tmp_path / "more").symlink_to("dog")  # the same images under another class, where nothing leads back
    assert loaded(f"folder:{tmp_path}").class_names == ("cat", "dog", "more")
    for name in ("first", "second"):
        (tmp_path / "cat" / name).symlink_to("..")
    back = rf"cat/first/cat is {tmp_path.resolve()}/cat once more, to which a link in it leads back"
    with pytest.raises(DataError, match=back):
        load_dataset(f"folder:{tmp_path}")


def test_what_cannot_be_looked_into_is_named(tmp_path: Path) -> None:
    write_images(tmp_path, "cat/1.jpg", "dog/2.jpg")
    (tmp_path / "cat" / "itself").symlink_to("itself")
    with pytest.raises(DataError, match=rf"^{tmp_path} cannot be read as a folder of images: {tmp_path}/cat/itself: "):
        load_dataset(f"folder:{tmp_path}")


def test_images_next_to_the_class_folders_are_counted(tmp_path: Path) -> None:
    write_images(tmp_path, "train/cat/1.jpg", "train/2.JPG", "train/3.png", "train/.4.jpg", "5.jpg")
    note = f"2 images in {tmp_path}/train itself skipped: they lie in no class folder"
    assert loaded(f"folder:{tmp_path}").notes == (note,)


def test_a_folder_without_classes_is_refused(tmp_path: Path) -> None:
    write_images(tmp_path, "1.jpg")
    with pytest.raises(DataError, match="must hold a folder of images for each class"):
        load_dataset(f"folder:{tmp_path}")
    with pytest.raises(DataError, match="absent does not exist"):
        load_dataset(f"folder:{tmp_path / 'absent'}")


def test_a_list_has_labels_truth_and_split_in_any_order_of_columns(tmp_path: Path) -> None:
    list_file = tmp_path / "images.csv"
    list_file.write_text(
        'split,label,path,clean\ntrain,dog,"a,b.jpg",cat\nval,cat,c.jpg,dog\ntest,dog,d.jpg,dog\ntrain,cat,e.jpg,cat\n'
    )
    dataset = loaded(f"csv:{list_file}")
    assert dataset.train.inputs.folder == tmp_path
    assert (dataset.train.inputs.paths, dataset.train.labels.tolist()) == (["a,b.jpg", "e.jpg"], [1, 0])
    assert dataset.train.clean_labels is not None
    assert dataset.train.clean_labels.tolist() == [0, 0]
    assert dataset.val is not None
    assert dataset.val.labels.tolist() == [1]  # held-out images count by the truth
    assert dataset.label_table == ("cat", "dog")


@pytest.mark.parametrize(
    "text",
    [
        ",path,label,split\n0,a.jpg,cat,train\n1,b.jpg,dog,train\n2,c.jpg,dog,val\n3,d.jpg,cat,test\n",
        "path;label;split\na.jpg;cat;train\nb.jpg;dog;train\nc.jpg;dog;val\nd.jpg;cat;test\n",
        "Path,Label,Split\na.jpg,cat,Train\nb.jpg,dog,training\nc.jpg,dog,valid\nd.jpg,cat,TESTING\n",
        "FileName\tsubset\tClass\na.jpg\ttrain\tcat\nb.jpg\ttrain\tdog\nc.jpg\tvalidation\tdog\nd.jpg\ttest\tcat\n",
    ],
    ids=["pandas", "semicolons", "capitals", "other names, tabs"],
)
def test_a_list_as_programs_write_it_is_read_like_a_plain_one(tmp_path: Path, text: str) -> None:
    """Case 58."""
    plain = "path,label,split\na.jpg,cat,train\nb.jpg,dog,train\nc.jpg,dog,val\nd.jpg,cat,test\n"
    found = []
    for content in (plain, text):
        (tmp_path / "list.csv").write_text(content)
        dataset = loaded(f"csv:{tmp_path / 'list.csv'}")
        assert dataset.test is not None
        assert dataset.val is not None
        parts = (dataset.train, dataset.val, dataset.test)
        found.append([(part.inputs.paths, part.labels.tolist()) for part in parts])
    assert found[0] == found[1]


def test_a_list_without_split_takes_test_images_from_a_folder_beside_it(tmp_path: Path) -> None:
    write_images(tmp_path, "test/1/t.jpg")
    (tmp_path / "list.csv").write_text("path,label\na.jpg,0\nb.jpg,1\n")
    dataset = loaded(f"csv:{tmp_path / 'list.csv'}")
    assert (dataset.num_classes, dataset.label_table) == (2, None)  # the numbers 0 and 1 are the classes
    assert dataset.test is not None
    assert (dataset.test.inputs.paths, dataset.test.labels.tolist()) == (["test/1/t.jpg"], [1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: the header must have the columns path, label, and may have clean, split, got ''"),
        ("a.jpg,0\n", "line 1: the header must have the columns path, label"),
        ("path,color\n", "line 1: the header must have the columns path, label"),
        ("file,label,Image\n", "line 1: 'file' and 'Image' could both be the column path; rename all but one"),
        ("path,label\na.jpg,0\n\nb.jpg\n", "line 4: there must be 2 cells, got 1"),
        ("path,label\na.jpg,\n", "line 2: the label is empty"),
        ("path,label,split\na.jpg,0,dev\n", "line 2: the split must be one of train, val, test, got 'dev'"),
        ("path,label\na.jpg,0\na.jpg,1\n", "line 3: a.jpg stands in line 2 already"),
        ("path,label,split\n./a.jpg,0,train\na.jpg,0,test\n", "a.jpg is trained on"),
        ("path,label,split\na.jpg,0,test\n", "no row to train on"),
        ("path,label\n", "no row to train on"),
    ],
)
def test_a_wrong_line_of_a_list_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(DataError) as caught:
        load_dataset(f"csv:{tmp_path / 'list.csv'}")
    assert message in str(caught.value)
