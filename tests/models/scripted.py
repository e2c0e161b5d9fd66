"""Models that people keep as TorchScript: ResNet-18, a U-Net, BERT (traced) and an LSTM (scripted)."""

import torch
import transformers as hf
from torch import Tensor, nn

from examples.unet import UNet


class BasicBlock(nn.Module):
    """Two convolutions with a residual connection."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.downsample = None
        if stride != 1 or inside != outside:
            self.downsample = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        """[N, inside, H, W] -> [N, outside, H / stride, W / stride]"""
        identity = x
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet18(nn.Module):
    """The published architecture: 11.7 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(BasicBlock(64, 64, 1), BasicBlock(64, 64, 1))
        self.layer2 = nn.Sequential(BasicBlock(64, 128, 2), BasicBlock(128, 128, 1))
        self.layer3 = nn.Sequential(BasicBlock(128, 256, 2), BasicBlock(256, 256, 1))
        self.layer4 = nn.Sequential(BasicBlock(256, 512, 2), BasicBlock(512, 512, 1))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, H, W] -> [N, 1000]"""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class Tagger(nn.Module):
    """A bidirectional LSTM over tokens, from a state of its own."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.lstm = nn.LSTM(16, width, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1)
        self.initial = nn.Parameter(torch.randn(4, 1, width))
        self.head = nn.Linear(2 * width, 7)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """[N, T] -> scores [N, T, 7] and the last hidden state [4, N, width]"""
        h = self.initial.expand(-1, tokens.size(0), -1).contiguous()
        out, (last, _) = self.lstm(self.embedding(tokens), (h, torch.zeros_like(h)))
        return self.head(out).log_softmax(-1), last


def resnet18() -> tuple[torch.jit.ScriptModule, tuple[Tensor, ...]]:
    x = torch.randn(2, 3, 64, 64)
    return torch.jit.script(ResNet18().eval()), (x,)


def unet() -> tuple[torch.jit.ScriptModule, tuple[Tensor, ...]]:
    x = torch.randn(2, 3, 32, 32)
    return torch.jit.trace(UNet(channels=16, multipliers=(1, 2)).eval(), x), (x,)


def unet_scripted() -> tuple[torch.jit.ScriptModule, tuple[Tensor, ...]]:
    x = torch.randn(2, 3, 32, 32)
    return torch.jit.script(UNet(channels=16, multipliers=(1, 2)).eval()), (x,)


def bert() -> tuple[torch.jit.ScriptModule, tuple[Tensor, ...]]:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    model = hf.BertModel(hf.BertConfig(vocab_size=100, return_dict=False, **sizes)).eval()
    args = torch.randint(0, 100, (2, 9)), torch.tensor([[1] * 9, [1] * 6 + [0] * 3])
    return torch.jit.trace(model, args), args


def lstm() -> tuple[torch.jit.ScriptModule, tuple[Tensor, ...]]:
    return torch.jit.script(Tagger().eval()), (torch.randint(0, 50, (2, 11)),)


MODELS = {"resnet18": resnet18, "unet": unet, "unet, scripted": unet_scripted, "bert": bert, "lstm": lstm}
