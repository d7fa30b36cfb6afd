"""The samples of an audit in the formats of other tools: Label Studio and FiftyOne."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jocor_fast.files.whole_file import json_bytes


@dataclass(frozen=True)
class Sample:
    """A sample in an image file.

    Attributes:
        id: its number in the data set.
        path: of the file, absolute.
        given, label: the given and the corrected class, by number.
        suspicion: how probably the given label is wrong.
        wrong: whether the audit takes it for wrong.
    """

    id: int
    path: Path
    given: int
    label: int
    suspicion: float
    wrong: bool

    def facts(self, names: Sequence[str]) -> dict[str, Any]:
        """Return what both formats say of a sample next to its label."""
        return {
            "sample_id": self.id,
            "given": names[self.given],
            "suspicion": round(self.suspicion, 6),
            "wrong": self.wrong,
        }


def label_studio_tasks(samples: Sequence[Sample], names: Sequence[str]) -> bytes:
    """Return tasks in Label Studio's JSON import format, whose predictions are the corrected labels.

    Image addresses are those of its local storage, with the root of the file system as document root.
    """
    tasks = []
    for sample in samples:
        address = "/data/local-files/?d=" + quote(bytes(sample.path)).lstrip("/")
        choice = {"choices": [names[sample.label]]}
        prediction = {
            "model_version": "jocor-fast audit",
            "score": sample.suspicion if sample.label != sample.given else 1 - sample.suspicion,
            "result": [{"from_name": "label", "to_name": "image", "type": "choices", "value": choice}],
        }
        data = sample.facts(names) | {"image": address, "path": str(sample.path)}
        tasks.append({"data": data, "predictions": [prediction]})
    return json.dumps(tasks, indent=1, ensure_ascii=False).encode(errors="backslashreplace")


def label_studio_view(samples: Sequence[Sample], names: Sequence[str]) -> bytes:
    """Return the labelling interface that the tasks are for."""
    from xml.sax.saxutils import quoteattr  # which imports ssl: more than a tenth of the time of `--version`

    choices = "".join(f"    <Choice value={quoteattr(name)}/>\n" for name in names)
    text = f"""<View>
  <Header value="Given label: $given"/>
  <Image name="image" value="$image"/>
  <Choices name="label" toName="image" choice="single" showInline="true">
{choices}  </Choices>
</View>
"""
    return text.encode(errors="replace")


def fiftyone_labels(samples: Sequence[Sample], names: Sequence[str]) -> bytes:
    """Return a labels.json of FiftyOne's FiftyOneImageClassificationDataset, with absolute paths as keys."""
    labels = {str(sample.path): {"label": sample.label, "attributes": sample.facts(names)} for sample in samples}
    return json_bytes({"classes": list(names), "labels": labels})


# The files of each format: {format: {what it is: (name, what writes it)}}.
EXPORTS: Mapping[str, Mapping[str, tuple[str, Callable[[Sequence[Sample], Sequence[str]], bytes]]]] = {
    "label-studio": {
        "tasks": ("label-studio.json", label_studio_tasks),
        "interface": ("label-studio.xml", label_studio_view),
    },
    "fiftyone": {"fiftyone": ("fiftyone.json", fiftyone_labels)},
}
