"""The encoder: a dict of observations with any leading dimensions -> one feature vector each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shoal import fast, own_code
from shoal.api import Observation, UsageError
from shoal.fast.perceptron import ACTIVATIONS, Perceptron
from shoal.nets.precision import full
from shoal.nets.resnet import ResNet50
from shoal.nets.torsos import MLP, Activation, ImageTorso, ImpalaResNet, MinAtarCNN, NatureCNN

Observations = Mapping[str, Observation]
Factory = Callable[[dict[str, Observation]], nn.Module]
OF_IMAGES = ("nature", "impala-shallow", "impala-deep", "resnet50", "minatar")
TORSOS = ("auto", "mlp", *OF_IMAGES, "none")


class Encoder(nn.Module):
    """Maps ``{name: [..., *shape]}`` to ``[..., features]`` (always float32). A ``mask`` among them is ignored.

    Each image has its own convolutional torso. Vectors (flattened) and integers (one-hot) are concatenated and passed
    to one MLP. All features are then concatenated. ``torso``:

    * ``auto`` = ``nature``; ``nature``, ``impala-shallow``, ``impala-deep`` and ``resnet50`` name the torso of images;
    * ``minatar`` is a torso of images and of boards, which are vectors of three dimensions, [H, W, C];
    * ``mlp`` flattens images into the MLP as well; ``none`` concatenates everything without any parameters;
    * your own: a function (or ``"module:function"``, or ``"file.py:function"``) from ``{name: Observation}`` to an
      ``nn.Module`` with an integer ``.features``, called with ``{name: [N, *shape]}`` and returning ``[N, features]``.
      When no gradient is needed (acting, target networks), it is in eval mode.

    ``fc=False`` leaves out the convolutional torsos' fully connected layer, for a dueling head that has its own.
    """

    features: int

    def __init__(
        self,
        observations: Observations,
        torso: str | Factory = "auto",
        hidden: Sequence[int] = (64, 64),
        activation: Activation = "tanh",
        layer_norm: bool = False,
        fc: bool = True,
    ):
        super().__init__()
        self.observations = {name: o for name, o in observations.items() if o.kind != "mask"}
        name, spec = next(iter(self.observations.items()))
        self._lead_of, self._event_dims = name, len(spec.shape)
        self.own: nn.Module | None = None
        self.images = nn.ModuleDict()
        self._keys: dict[str, str] = {}  # observation -> its name in ``images``
        self.flat: list[str] = []
        self.mlp: nn.Module = nn.Identity()
        factory = resolve_torso(torso)
        if factory is not None:
            with own_code.failing(f"torso {torso!r} cannot be made"):
                self.own = factory(self.observations)
            if not isinstance(getattr(self.own, "features", None), int):
                raise UsageError(f"the network made by {torso!r} needs an integer attribute 'features'")
            self.features = cast(int, self.own.features)
            return
        self.features = 0
        for name, spec in self.observations.items():
            if convolved(spec, cast(str, torso)):
                image = _image_torso(cast(str, torso), spec, layer_norm, fc)
                key = name.replace(".", "_")  # names in a ModuleDict must not contain dots
                # each observation has its own torso
                while key in self.images or key in self.observations.keys() - {name}:
                    key += "_"
                self._keys[name] = key
                self.images[key] = image
                self.features += image.features
            else:
                self.flat.append(name)
        inputs = sum(_flat_size(self.observations[n]) for n in self.flat)
        if self.flat and torso != "none" and len(hidden):
            self.mlp = MLP((inputs, *hidden), activation, layer_norm)
            inputs = hidden[-1]
        self.features += inputs

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        shape = obs[self._lead_of].shape
        lead = shape[: len(shape) - self._event_dims]
        batch = len(lead) == 1  # rows that need no reshaping
        rows = {n: obs[n] if batch else obs[n].reshape(-1, *o.shape) for n, o in self.observations.items()}
        y = (self._join(rows) if self.own is None else _called(self.own, rows)).float()
        return y if batch else y.reshape(*lead, self.features)

    @property
    def seen_features(self) -> int:
        """Number of features that ``see`` returns."""
        return sum(cast(int, image.features) for image in self.images.values()) or self.features

    def see(self, rows: Mapping[str, Tensor]) -> Tensor:
        """Return the image torsos' features ``[N, seen_features]``, or those of all observations if there are no
        images."""
        seen = [self.images[self._keys[n]](x) for n, x in rows.items() if n in self._keys]
        return torch.cat(seen, -1).float() if seen else cast(Tensor, self(rows))

    def vector(self, rows: Mapping[str, Tensor]) -> Tensor:
        """Return the input of the MLP: all observations without an image torso, concatenated; ``rows`` are ``[N,
        *shape]``."""
        flats = [_flatten(rows[n], self.observations[n]) for n in self.flat]
        return flats[0] if len(flats) == 1 else torch.cat(flats, -1)

    def perceptron(self, *heads: nn.Linear) -> Perceptron | None:
        """Return a compiled version of the MLP on ``vector``, followed by ``heads`` side by side, that computes outside
        autograd, or None if ``chain`` is None."""
        chain = self.chain()
        return None if chain is None else Perceptron(*chain, heads)

    def chain(self) -> tuple[list[nn.Linear], type[nn.Module]] | None:
        """Return the linear layers of the MLP on ``vector`` and the activation after each, or None if the encoder has
        other parts or compiled code is turned off."""
        if not fast.ENABLED or self.own is not None or self.images:
            return None
        layers = list(self.mlp.children())
        linear, between = layers[::2], {type(m) for m in layers[1::2]} or {nn.ReLU}
        if not all(isinstance(m, nn.Linear) for m in linear) or len(between) > 1 or not between <= set(ACTIVATIONS):
            return None
        return cast(list[nn.Linear], linear), between.pop()

    def _join(self, rows: Mapping[str, Tensor]) -> Tensor:
        parts: list[Tensor] = [self.images[self._keys[n]](x).float() for n, x in rows.items() if n in self._keys]
        if self.flat:
            x = self.vector(rows)
            with full(x.device):  # an MLP of this size is no faster in bf16, and its inputs may be large
                parts.append(self.mlp(x))
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def convolved(spec: Observation, torso: str) -> bool:
    """Return True if an observation has its own convolutional torso: images, and boards with ``minatar``."""
    if torso not in ("auto", *OF_IMAGES):
        return False
    return spec.kind == "image" or (torso == "minatar" and spec.kind == "vector" and len(spec.shape) == 3)


def idle(observations: Observations, torso: str) -> dict[str, str]:
    """Return the settings among ``torso``, ``hidden`` and ``activation`` that have no effect on an encoder of these
    observations, each with the reason."""
    seen = [o for o in observations.values() if o.kind != "mask"]
    images = [convolved(o, torso) for o in seen]
    out = {}
    if torso in OF_IMAGES and not any(images):
        out["torso"] = "the environment shows no images" + (" and no boards" if torso == "minatar" else "")
    if torso == "none" or torso not in TORSOS:
        out |= dict.fromkeys(("hidden", "activation"), f"torso is {torso}")
    elif all(images):
        shown = "images" if all(o.kind == "image" for o in seen) else "boards"
        out |= dict.fromkeys(("hidden", "activation"), f"the environment shows {shown} alone, which have a torso")
    return out


def resolve_torso(torso: str | Factory) -> Factory | None:
    """Return the user's factory that ``torso`` names, or None for one of ``TORSOS``."""
    if not isinstance(torso, str):
        return torso
    if torso in TORSOS:
        return None
    if ":" not in torso:
        raise UsageError(
            f"torso must be one of {', '.join(TORSOS)}, 'module:function' or 'file.py:function', not {torso!r}"
        )
    factory = own_code.attribute(torso, f"torso {torso!r}")
    if not callable(factory):
        raise UsageError(f"torso {torso!r} is a {type(factory).__name__}, not a function")
    return cast(Factory, factory)


def _called(own: nn.Module, rows: dict[str, Tensor]) -> Tensor:
    """Return the features that the user's network makes of observations. Without a gradient, it is in eval mode."""
    if torch.is_grad_enabled() or not own.training:
        return cast(Tensor, own(rows))
    # leaves out modules that the user has set to eval mode
    training = [module for module in own.modules() if module.training]
    own.eval()
    try:
        return cast(Tensor, own(rows))
    finally:
        for module in training:
            module.training = True


def _image_torso(torso: str, spec: Observation, layer_norm: bool, fc: bool) -> ImageTorso | ResNet50:
    if len(spec.shape) != 3:
        raise UsageError(f"an image must have shape [C, H, W], not {list(spec.shape)}")
    if torso == "minatar":
        return MinAtarCNN(spec.shape, spec.kind != "image", 128 if fc else 0, layer_norm)
    c, h, w = spec.shape
    if torso in ("auto", "nature"):
        return NatureCNN(c, h, w, 512 if fc else 0, layer_norm)
    if torso == "resnet50":
        return ResNet50(c, h, w, 512 if fc else 0)
    return ImpalaResNet(c, h, w, "deep" if torso == "impala-deep" else "shallow", 256 if fc else 0, layer_norm)


def _flat_size(spec: Observation) -> int:
    if spec.kind == "one_hot":
        return sum(spec.size)
    n = 1
    for d in spec.shape:
        n *= d
    return n


def _flatten(x: Tensor, spec: Observation) -> Tensor:
    """Return x [N, *shape] as float32 [N, flat size]."""
    if spec.kind == "one_hot":
        columns = x.reshape(-1, len(spec.size)).long()  # integers may have shape [N]
        hots = [F.one_hot(columns[:, i], n) for i, n in enumerate(spec.size)]
        return torch.cat(hots, -1).float()
    y = x.flatten(1).float()
    return y * (1 / 255) if spec.kind == "image" and x.dtype == torch.uint8 else y
