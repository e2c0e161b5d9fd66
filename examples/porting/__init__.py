"""Ten pieces as people write them for Torch-TensorRT, its FX frontend and TorchScript, with other import lines and
nothing else changed. Each file says at its head what its import lines were."""
