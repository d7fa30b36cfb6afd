"""Which class is easily taken for which: the pairs of asymmetric noise, and CIFAR-100's classes, which they need."""

from __future__ import annotations

# CIFAR-100's twenty superclasses of five classes each.
SUPERCLASSES: dict[str, tuple[str, ...]] = {
    "aquatic_mammals": ("beaver", "dolphin", "otter", "seal", "whale"),
    "fish": ("aquarium_fish", "flatfish", "ray", "shark", "trout"),
    "flowers": ("orchid", "poppy", "rose", "sunflower", "tulip"),
    "food_containers": ("bottle", "bowl", "can", "cup", "plate"),
    "fruit_and_vegetables": ("apple", "mushroom", "orange", "pear", "sweet_pepper"),
    "household_electrical_devices": ("clock", "keyboard", "lamp", "telephone", "television"),
    "household_furniture": ("bed", "chair", "couch", "table", "wardrobe"),
    "insects": ("bee", "beetle", "butterfly", "caterpillar", "cockroach"),
    "large_carnivores": ("bear", "leopard", "lion", "tiger", "wolf"),
    "large_man-made_outdoor_things": ("bridge", "castle", "house", "road", "skyscraper"),
    "large_natural_outdoor_scenes": ("cloud", "forest", "mountain", "plain", "sea"),
    "large_omnivores_and_herbivores": ("camel", "cattle", "chimpanzee", "elephant", "kangaroo"),
    "medium_mammals": ("fox", "porcupine", "possum", "raccoon", "skunk"),
    "non-insect_invertebrates": ("crab", "lobster", "snail", "spider", "worm"),
    "people": ("baby", "boy", "girl", "man", "woman"),
    "reptiles": ("crocodile", "dinosaur", "lizard", "snake", "turtle"),
    "small_mammals": ("hamster", "mouse", "rabbit", "shrew", "squirrel"),
    "trees": ("maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"),
    "vehicles_1": ("bicycle", "bus", "motorcycle", "pickup_truck", "train"),
    "vehicles_2": ("lawn_mower", "rocket", "streetcar", "tank", "tractor"),
}

# The classes in the order of their numbers, which is that of their names.
FINE_CLASSES: tuple[str, ...] = tuple(sorted(name for names in SUPERCLASSES.values() for name in names))


def _cifar100_within_superclasses() -> dict[int, int]:
    """Each class turns into the next (by number) of its superclass, the last into the first."""
    pairs: dict[int, int] = {}
    for names in SUPERCLASSES.values():
        members = sorted(FINE_CLASSES.index(name) for name in names)
        pairs.update(zip(members, members[1:] + members[:1], strict=True))
    return pairs


# clean class -> the class that it is taken for; classes that are not named stay clean
ASYMMETRIC_PAIRS: dict[str, tuple[int, dict[int, int]]] = {
    "mnist": (10, {7: 1, 2: 7, 5: 6, 6: 5, 3: 8}),
    "cifar10": (10, {9: 1, 2: 0, 3: 5, 5: 3, 4: 7}),  # truck, bird, cat ↔ dog, deer
    "cifar100": (100, _cifar100_within_superclasses()),
    # The authors' code takes blocks of five consecutive numbers for superclasses, but the numbers are alphabetical.
    "cifar100-published": (100, {c: c // 5 * 5 + (c + 1) % 5 for c in range(100)}),
}
