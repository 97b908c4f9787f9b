"""conv1d_nlc on Hopper's tensor cores: by wgmma, fed by TMA."""
